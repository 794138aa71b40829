from ellm.hardware.cgroups import group_directories, read_integer
from tests.support.system_tree import DOCKER_V2, HOST_V2, HYBRID, write_tree


def test_directories_run_from_own_group_to_the_mount(tmp_path):
    own = tmp_path / "sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope"
    own.mkdir(parents=True)
    root = write_tree(tmp_path, HOST_V2)
    assert group_directories("memory", root) == [own, *list(own.parents)[:3]]


def test_versions_side_by_side_are_both_found(tmp_path):
    (tmp_path / "sys/fs/cgroup/memory/process_api/61a9").mkdir(parents=True)
    found = group_directories("memory", write_tree(tmp_path, HYBRID))
    assert [str(path.relative_to(tmp_path / "sys/fs/cgroup")) for path in found] == [
        "memory/process_api/61a9",
        "memory/process_api",
        "memory",
        "unified",
    ]


def test_escaped_mount_points_are_read(tmp_path):
    line = "1 2 0:29 / /sys/fs/my\\040groups rw - cgroup2 cgroup rw\n"
    root = write_tree(tmp_path, DOCKER_V2, {"proc/self/mountinfo": line})
    assert group_directories("cpu", root) == [tmp_path / "sys/fs/my groups"]


def test_only_integers_are_read(tmp_path):
    for text, value in {"12\n": 12, "-1\n": -1, "max\n": None, "": None, "9" * 30: None}.items():
        (tmp_path / "file").write_text(text)
        assert read_integer(tmp_path / "file") == value
    assert read_integer(tmp_path / "missing") is None
