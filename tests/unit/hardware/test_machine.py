import platform

from ellm.hardware.machine import Machine, cpu_name, this_machine
from tests.support.system_tree import DOCKER_V2, GIB, thread_status, write_tree

INTEL = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 106\n"
    "model name\t: Intel(R) Xeon(R)  Platinum 8375C CPU @ 2.90GHz\nstepping\t: 6\n\n"
    "processor\t: 1\nmodel name\t: another\n"
)
ARM = "processor\t: 0\nBogoMIPS\t: 243.75\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


def test_cpu_is_named_as_the_system_names_its_first(tmp_path):
    root = write_tree(tmp_path, {"proc/cpuinfo": INTEL})
    assert cpu_name(root) == "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"


def test_cpu_without_a_name_is_called_by_its_architecture(tmp_path):
    assert cpu_name(write_tree(tmp_path, {"proc/cpuinfo": ARM})) == platform.machine()
    nameless = {"proc/cpuinfo": "model name\t: \nstepping\t: 6\n"}
    assert cpu_name(write_tree(tmp_path, nameless)) == platform.machine()
    assert cpu_name(tmp_path / "nowhere") == platform.machine()


def test_limits_of_the_container_are_the_machine(tmp_path):
    files = {
        "proc/cpuinfo": INTEL,
        "sys/fs/cgroup/cpu.max": "300000 100000\n",
        "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{GIB}\n",
    }
    root = write_tree(tmp_path, DOCKER_V2, thread_status("0-7"), files)
    assert this_machine(root) == Machine(cpu_name(root), 3, 3 * GIB)


def test_this_machine_has_a_name():
    assert this_machine().cpu
