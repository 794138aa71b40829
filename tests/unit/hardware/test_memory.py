import pytest

from ellm.errors import NativeError
from ellm.hardware.memory import available_memory_bytes, peak_rss_bytes
from tests.support.system_tree import DOCKER_V1, DOCKER_V2, GIB, HOST_V2, HYBRID, write_tree

UNLIMITED_V1 = "9223372036854771712"


def group_v2(path, limit, used, *, file_bytes=0):
    return {
        f"sys/fs/cgroup/{path}memory.max": f"{limit}\n",
        f"sys/fs/cgroup/{path}memory.current": f"{used}\n",
        f"sys/fs/cgroup/{path}memory.stat": (
            f"anon {used - file_bytes}\nactive_file {file_bytes // 2}\n"
            f"inactive_file {file_bytes - file_bytes // 2}\n"
        ),
    }


def group_v1(path, limit, used, *, file_bytes=0, hierarchical=UNLIMITED_V1):
    return {
        f"sys/fs/cgroup/memory/{path}memory.limit_in_bytes": f"{limit}\n",
        f"sys/fs/cgroup/memory/{path}memory.usage_in_bytes": f"{used}\n",
        f"sys/fs/cgroup/memory/{path}memory.stat": (
            f"hierarchical_memory_limit {hierarchical}\n"
            f"total_active_file {file_bytes}\ntotal_inactive_file 0\n"
        ),
    }


@pytest.mark.parametrize("tree", [HOST_V2, DOCKER_V2, DOCKER_V1, HYBRID])
def test_without_limits_the_host_decides(tmp_path, tree):
    assert available_memory_bytes(write_tree(tmp_path, tree)) == 16 * GIB


def test_container_limit_less_what_it_uses_counts(tmp_path):
    root = write_tree(tmp_path, DOCKER_V2, group_v2("", 4 * GIB, GIB))
    assert available_memory_bytes(root) == 3 * GIB


def test_limit_of_version_1_counts_where_the_mount_shows_the_end_of_the_path(tmp_path):
    root = write_tree(tmp_path, DOCKER_V1, group_v1("", 2 * GIB, GIB))
    assert available_memory_bytes(root) == GIB


def test_file_pages_count_as_free(tmp_path):
    root = write_tree(tmp_path, DOCKER_V2, group_v2("", 4 * GIB, 3 * GIB, file_bytes=2 * GIB))
    assert available_memory_bytes(root) == 3 * GIB
    v1 = write_tree(tmp_path / "v1", DOCKER_V1, group_v1("", 4 * GIB, 3 * GIB, file_bytes=GIB))
    assert available_memory_bytes(v1) == 2 * GIB


def test_tightest_ancestor_decides(tmp_path):
    scope = "user.slice/user-1000.slice/session-3.scope/"
    root = write_tree(
        tmp_path,
        HOST_V2,
        group_v2(scope, "max", GIB),
        group_v2("user.slice/user-1000.slice/", 6 * GIB, 5 * GIB),
        group_v2("user.slice/", 12 * GIB, 6 * GIB),
    )
    assert available_memory_bytes(root) == GIB


def test_ancestors_of_version_1_count_too(tmp_path):
    root = write_tree(
        tmp_path,
        HYBRID,
        group_v1("process_api/61a9/", UNLIMITED_V1, GIB),
        group_v1("process_api/", 5 * GIB, 2 * GIB),
        group_v1("", UNLIMITED_V1, 3 * GIB),
    )
    assert available_memory_bytes(root) == 3 * GIB


def test_limit_of_an_ancestor_outside_the_container_counts(tmp_path):
    group = group_v1("", UNLIMITED_V1, GIB, hierarchical=3 * GIB)
    assert available_memory_bytes(write_tree(tmp_path, DOCKER_V1, group)) == 2 * GIB


def test_group_over_its_limit_has_nothing_left(tmp_path):
    root = write_tree(tmp_path, DOCKER_V2, group_v2("", GIB, 2 * GIB))
    assert available_memory_bytes(root) == 0


def test_damaged_files_are_no_limit(tmp_path):
    files = {
        "sys/fs/cgroup/memory.max": "what\n",
        "sys/fs/cgroup/memory.current": "",
        "sys/fs/cgroup/memory.stat": "anon\nx y z\n",
    }
    assert available_memory_bytes(write_tree(tmp_path, DOCKER_V2, files)) == 16 * GIB
    broken = {"proc/self/mountinfo": "1 2\n - cgroup2\n", "proc/self/cgroup": "nonsense\n0::\n"}
    assert available_memory_bytes(write_tree(tmp_path, broken)) == 16 * GIB


def test_path_that_climbs_out_of_the_mount_is_not_followed(tmp_path):
    outside = {"sys/fs/memory.max": f"{GIB}\n", "sys/fs/memory.current": "0\n"}
    climbing = {"proc/self/cgroup": "0::/..\n"}
    assert available_memory_bytes(write_tree(tmp_path, DOCKER_V2, outside, climbing)) == 16 * GIB


def test_system_that_does_not_say_is_an_error(tmp_path):
    with pytest.raises(NativeError, match="MemAvailable"):
        available_memory_bytes(tmp_path)


def test_peak_rss_is_read_from_status(tmp_path):
    root = write_tree(tmp_path, {"proc/self/status": "Name:\tpython\nVmHWM:\t   13000 kB\n"})
    assert peak_rss_bytes(root) == 13000 * 1024
    assert peak_rss_bytes(tmp_path / "nowhere") == 0


def test_this_machine_answers_sensibly():
    assert 0 < available_memory_bytes() < 1 << 50
    assert 1 << 20 < peak_rss_bytes() < 1 << 40
