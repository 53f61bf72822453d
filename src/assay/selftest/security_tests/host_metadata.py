"""Attacks on the metadata of host files: permissions, owners, times."""

from assay.selftest.security_tests.attack import AttackConfig
from assay.selftest.security_tests.probe import probing
from assay.selftest.security_tests.targets import CALL, CALL_CONTROL

_TERMS = AttackConfig(group="host_data")
_OF_THE_HOST = "TARGET = CANARY['writable_file']"
_ONE_OF_ITS_OWN = """
TARGET = os.path.abspath("own")
open(TARGET, "w").close()
"""

_CHANGES = {
    "the_mode_of_a_file_of_the_host_cannot_be_changed": "os.chmod(TARGET, 0o640)",
    "the_mode_of_a_file_of_the_host_cannot_be_changed_through_a_link": (
        "(os.symlink(TARGET, 'link'), os.chmod('link', 0o640))"
    ),
    "the_mode_of_a_file_of_the_host_cannot_be_changed_from_its_folder": (
        "(os.chdir(os.path.dirname(TARGET)), os.chmod(os.path.basename(TARGET), 0o640))"
    ),
    "the_mode_of_a_file_of_the_host_cannot_be_changed_through_a_descriptor": (
        "os.chmod(f'/proc/self/fd/{os.open(TARGET, os.O_PATH)}', 0o640)"
    ),
    "the_mode_of_a_file_of_the_host_cannot_be_changed_through_the_root_of_a_process": (
        "os.chmod('/proc/self/root' + TARGET, 0o640)"
    ),
    "the_mode_of_a_folder_of_the_host_cannot_be_changed": (
        "os.chmod(os.path.dirname(TARGET), 0o750)"
    ),
    "the_times_of_a_file_of_the_host_cannot_be_changed": "os.utime(TARGET, (1, 1))",
    "the_times_of_a_link_of_the_host_cannot_be_changed": (
        "os.utime(TARGET, (1, 1), follow_symlinks=False)"
    ),
}

CHANGES = tuple(
    probing(
        name,
        detector=f"judge(lambda: (True, {act}))",
        attack=_OF_THE_HOST,
        control=_ONE_OF_ITS_OWN,
        terms=_TERMS,
    )
    for name, act in _CHANGES.items()
)

_REFUSALS = {
    "the_group_of_a_file_of_the_host_cannot_be_changed": "os.chown(TARGET, -1, os.getgid())",
    "an_attribute_of_a_file_of_the_host_cannot_be_set": "os.setxattr(TARGET, 'user.x', b'x')",
}

REFUSALS = tuple(
    probing(
        name,
        detector=CALL,
        attack=f"{_OF_THE_HOST}\nACT = lambda: {act}",
        control=CALL_CONTROL,
        terms=_TERMS,
    )
    for name, act in _REFUSALS.items()
)

SWAPPED = probing(
    "a_link_that_changes_its_mind_does_not_change_the_mode_of_a_file_of_the_host",
    detector="""
        import threading, time
        open("harmless", "w").close()
        over = time.monotonic() + 1
        def swap():
            while time.monotonic() < over:
                for target in ("harmless", TARGET):
                    os.symlink(target, "new")
                    os.rename("new", "link")
        os.symlink("harmless", "link")
        swapper = threading.Thread(target=swap)
        swapper.start()
        while time.monotonic() < over:
            try:
                os.chmod("link", 0o640)
            except OSError:
                pass
        swapper.join()
        judge(lambda: os.stat(TARGET).st_mode & 0o777 == 0o640 and "changed")
    """,
    attack=_OF_THE_HOST,
    control=_ONE_OF_ITS_OWN,
    terms=_TERMS,
)
