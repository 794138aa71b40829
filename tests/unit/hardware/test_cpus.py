import logging
import os

import pytest

from ellm.hardware.cpus import (
    allowed_cpus,
    choose_cpus,
    parse_cpu_list,
    quota_cpus,
    thread_limit,
)
from tests.support.system_tree import (
    DOCKER_V1,
    DOCKER_V2,
    HOST_V2,
    HYBRID,
    thread_status,
    write_tree,
)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", {0}),
        ("0-3", {0, 1, 2, 3}),
        ("0-1,8,10-11", {0, 1, 8, 10, 11}),
        ("", set()),
        ("0-", set()),
        ("a", set()),
        ("1,,2", set()),
        ("0-9999999999", set()),
    ],
)
def test_cpu_lists_of_the_kernel(text, cpus):
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("tree", [HOST_V2, DOCKER_V2, DOCKER_V1, HYBRID])
def test_affinity_alone_limits_threads_without_a_quota(tmp_path, tree):
    root = write_tree(tmp_path, tree, thread_status("4-6,9"))
    assert allowed_cpus(root) == {4, 5, 6, 9}
    assert quota_cpus(root) is None
    assert thread_limit(root) == 4


@pytest.mark.parametrize(
    ("quota", "cpus", "threads"),
    [("200000 100000", 2.0, 2), ("150000 100000", 1.5, 1), ("5000 10000", 0.5, 1)],
)
def test_quota_of_version_2_is_rounded_down_but_not_to_nothing(tmp_path, quota, cpus, threads):
    files = {"sys/fs/cgroup/cpu.max": f"{quota}\n"}
    root = write_tree(tmp_path, DOCKER_V2, thread_status("0-7"), files)
    assert quota_cpus(root) == cpus
    assert thread_limit(root) == threads


def test_quota_of_version_1_counts(tmp_path):
    group = "sys/fs/cgroup/cpu,cpuacct/"
    files = {f"{group}cpu.cfs_quota_us": "300000\n", f"{group}cpu.cfs_period_us": "100000\n"}
    assert thread_limit(write_tree(tmp_path, DOCKER_V1, thread_status("0-7"), files)) == 3
    files[f"{group}cpu.cfs_quota_us"] = "-1\n"
    assert thread_limit(write_tree(tmp_path, DOCKER_V1, files)) == 8


def test_tightest_quota_of_the_ancestors_decides(tmp_path):
    files = {
        "sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/cpu.max": "max 100000\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/cpu.max": "600000 100000\n",
        "sys/fs/cgroup/user.slice/cpu.max": "200000 100000\n",
    }
    assert quota_cpus(write_tree(tmp_path, HOST_V2, files)) == 2


def test_more_threads_than_allowed_are_lowered_with_a_warning(tmp_path, caplog):
    files = {"sys/fs/cgroup/cpu.max": "300000 100000\n"}
    root = write_tree(tmp_path, DOCKER_V2, thread_status("0-7"), files)
    with caplog.at_level(logging.WARNING):
        assert [choose_cpus(asked, root) for asked in (None, 1, 3)] == [[0, 1, 2], [0], [0, 1, 2]]
        assert not caplog.records
        assert choose_cpus(16, root) == [0, 1, 2]
    assert "threads=16 lowered to 3" in caplog.text
    assert "8 CPUs with a quota of 3" in caplog.text


def test_whole_cores_come_before_second_hardware_threads(tmp_path):
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{siblings}\n"
        for cpu, siblings in {0: "0-1", 1: "0-1", 2: "2,6", 6: "2,6", 7: "7"}.items()
    }
    root = write_tree(tmp_path, HOST_V2, thread_status("0-2,6-7"), files)
    assert choose_cpus(None, root) == [0, 2, 7, 1, 6]
    assert choose_cpus(3, root) == [0, 2, 7]


def test_system_without_proc_uses_every_cpu(tmp_path):
    assert len(allowed_cpus(tmp_path)) == os.cpu_count()


def test_this_machine_agrees_with_the_scheduler():
    assert allowed_cpus() == os.sched_getaffinity(0)
    assert 1 <= thread_limit() <= len(os.sched_getaffinity(0))
