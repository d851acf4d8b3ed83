use super::*;
use std::collections::HashSet;

#[test]
fn every_call_is_there_once_and_for_a_reason() {
    let mut names = HashSet::new();
    let mut numbers = HashSet::new();
    for call in table(false) {
        assert!(call.why.len() >= 8, "{}: no reason", call.name());
        assert!(
            names.insert(call.name()) && numbers.insert(call.number),
            "{} twice",
            call.name()
        );
    }
}

#[test]
fn system_calls_of_known_escapes_are_absent() {
    let names: HashSet<_> = table(true).chain(STORAGE).map(SystemCall::name).collect();
    for bad in [
        "ptrace",
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "setns",
        "unshare",
        "clone3",
        "bpf",
        "io_uring_setup",
        "userfaultfd",
        "perf_event_open",
        "keyctl",
        "add_key",
        "request_key",
        "init_module",
        "finit_module",
        "kexec_load",
        "process_vm_readv",
        "process_vm_writev",
        "pidfd_getfd",
        "open_by_handle_at",
        "mknod",
        "mknodat",
        "setuid",
        "setresuid",
        "capset",
        "personality",
        "shmget",
        "msgget",
        "semget",
        "mq_open",
        "reboot",
        "swapon",
        "iopl",
        "quotactl",
        "kcmp",
        "open_tree",
        "move_mount",
        "fsopen",
        "seccomp",
        "modify_ldt",
        "acct",
        "syslog",
        "inotify_init",
        "inotify_init1",
        "fanotify_init",
    ] {
        assert!(!names.contains(bad), "{bad} is allowed");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn the_page_for_operators_shows_this_table() {
    let page = include_str!("../../../../docs/sandboxes.md");
    let rows: Vec<String> = table(false)
        .map(|call| format!("| `{}` | {} |", call.name(), call.why))
        .collect();
    for row in &rows {
        assert!(
            page.contains(row),
            "docs/sandboxes.md lacks\n{row}\nall rows:\n{}",
            rows.join("\n")
        );
    }
    let begin = page
        .find("| call | what for |")
        .expect("docs/sandboxes.md has the table");
    let length = page[begin..]
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .count();
    assert_eq!(
        length,
        rows.len(),
        "docs/sandboxes.md has rows that the table does not have"
    );
}
