//! System calls that code in a sandbox may make. Every other call fails as if the kernel did not have it.
//!
//! A call is listed because a worker, an interpreter or a numeric library needs it. Not listed are calls that reach
//! beyond the sandbox's own processes, memory and files, or into parts of the kernel that are rarely used and often
//! broken: no `ptrace`, `mount`, `bpf`, `io_uring`, `userfaultfd`, `perf_event_open`, keys, modules, namespaces,
//! clocks. docs/sandboxes.md shows this table.

/// A condition on an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentRule {
    /// The argument with this index, from 0, has this value.
    Is(u8, u64),
    /// The argument with this index has another value.
    IsNot(u8, u64),
    /// None of these bits are set in the argument.
    HasNone(u8, u64),
    /// Exactly the bits of the last number are set, of those in the mask.
    MaskedIs(u8, u64, u64),
    /// Each of these rules holds. Their arguments differ, because a container runtime takes two conditions on one
    /// argument as alternatives.
    All(&'static [ArgumentRule]),
}

/// A system call that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemCall {
    constant: &'static str,
    /// Number of the call on this architecture.
    pub number: i64,
    /// At least one rule must hold; no rules: the call is always allowed.
    pub rules: &'static [ArgumentRule],
    /// Reason why it is allowed.
    pub why: &'static str,
}

impl SystemCall {
    /// Name of the call in the manual.
    pub fn name(&self) -> &'static str {
        self.constant.trim_start_matches("SYS_")
    }
}

/// Calls of a sandbox, with or without a network.
pub fn table(network: bool) -> impl Iterator<Item = &'static SystemCall> {
    let more: &[SystemCall] = if network { NETWORK } else { &[] };
    BASE_CALLS.iter().chain(OLD).chain(more)
}

/// Calls of a sandbox without a network but with access to object storage: Landlock, where the kernel has it for TCP,
/// allows connections to one port of the sandbox's loopback only.
pub fn table_with_storage() -> impl Iterator<Item = &'static SystemCall> {
    table(false).chain(STORAGE)
}

/// Calls of a sandbox that runs a virtual machine with the processor's help.
pub fn table_of_machine(network: bool) -> impl Iterator<Item = &'static SystemCall> {
    table(network).chain(MACHINE)
}

/// Calls of Charliecloud, which has yet to make the root. The added calls are useless without capabilities, and a
/// process that cannot make a user namespace gets none.
pub fn table_of_runtime(network: bool) -> impl Iterator<Item = &'static SystemCall> {
    table(network).chain(RUNTIME)
}

/// Calls of a zygote: its forks also need calls to join their own namespaces and to be confined there.
pub fn table_of_zygote() -> impl Iterator<Item = &'static SystemCall> {
    table(false).chain(ZYGOTE_CALLS)
}

/// Calls of a zygote where virtual machines run with the processor's help.
pub fn table_of_zygote_of_machines() -> impl Iterator<Item = &'static SystemCall> {
    table_of_zygote().chain(MACHINE)
}

/// Calls that a zygote's forks lose once they are in place: all calls that zygotes have beyond other programs.
pub fn lost_by_forks() -> impl Iterator<Item = &'static SystemCall> {
    ZYGOTE_CALLS.iter()
}

/// Flags of clone(2) that make namespaces.
const NAMESPACES: u64 = 0x7e02_0000;
const UNIX: u64 = libc::AF_UNIX as u64;
/// Bit of the commands of fcntl(2) that only Linux has. Among them are F_NOTIFY and F_SETLEASE, which tell what other
/// processes do with a file or folder.
const LINUX_FCNTL: u64 = 1024;
/// Bit of F_OFD_GETLK, F_OFD_SETLK and F_OFD_SETLKW, and of no other command. Such a lock has no process that the agent
/// could find: a claim of a shared core that cannot be ended.
const FILE_LOCKS: u64 = 32;
const OUT_OF_BAND: u64 = libc::MSG_OOB as u64;

macro_rules! calls {
    ($($constant:ident $([$($rule:expr),+])? $why:literal;)*) => {
        &[$(SystemCall {
            constant: stringify!($constant),
            number: libc::$constant as i64,
            rules: &[$($($rule),+)?],
            why: $why,
        }),*]
    };
}

use ArgumentRule::{All, HasNone, Is, IsNot, MaskedIs};

const BASE_CALLS: &[SystemCall] = calls! {
    // Memory.
    SYS_brk "the heap";
    SYS_mmap "memory, channels, libraries";
    SYS_mprotect "loading libraries; stacks of threads";
    SYS_munmap "giving memory back";
    SYS_mremap "growing large arrays in place";
    SYS_madvise "giving pages back to the system; huge pages";
    SYS_msync "writing mapped files";
    SYS_mincore "whether pages are there";
    SYS_mlock "keeping pages that a device reads";
    SYS_munlock "the same";
    SYS_memfd_create "memory that has a descriptor: channels of its own";
    SYS_membarrier "fences between threads, as runtimes use them";
    SYS_get_mempolicy "where memory is: numeric libraries on several sockets";
    SYS_mbind "where memory shall be: the same";
    SYS_set_mempolicy "the same";
    // Descriptors and files: only what is mounted, and within the program's rights.
    SYS_read "files, sockets, counters";
    SYS_write "the same; output";
    SYS_readv "the same, in pieces";
    SYS_writev "the same, in pieces";
    SYS_pread64 "files, at a place";
    SYS_pwrite64 "the same";
    SYS_preadv "the same, in pieces";
    SYS_pwritev "the same, in pieces";
    SYS_openat "files, libraries";
    SYS_close "descriptors";
    SYS_close_range "many of them, before a program is run";
    SYS_dup "descriptors of a subprocess";
    SYS_dup3 "the same";
    SYS_fcntl [HasNone(1, LINUX_FCNTL | FILE_LOCKS), Is(1, libc::F_DUPFD_CLOEXEC as u64), Is(1, libc::F_SETPIPE_SZ as u64),
        Is(1, libc::F_GETPIPE_SZ as u64), Is(1, libc::F_ADD_SEALS as u64), Is(1, libc::F_GET_SEALS as u64)]
        "flags of descriptors; locks that name their process, like the claim of a shared core. No news of what others do with a file";
    SYS_flock "locks of files";
    SYS_lseek "places in files";
    SYS_fstat "what a descriptor is";
    SYS_newfstatat "what a path is";
    SYS_statx "the same, as newer libraries ask";
    SYS_statfs "how full a file system is";
    SYS_fstatfs "the same";
    SYS_getdents64 "listing folders: imports";
    SYS_readlinkat "links: where an interpreter is";
    SYS_faccessat "whether a file may be read";
    SYS_faccessat2 "the same, as newer libraries ask";
    SYS_getcwd "where it is";
    SYS_chdir "going elsewhere";
    SYS_fchdir "the same";
    SYS_umask "modes of new files";
    SYS_mkdirat "folders in /tmp";
    SYS_unlinkat "removing files";
    SYS_renameat "replacing files whole";
    SYS_renameat2 "the same";
    SYS_linkat "names of files";
    SYS_symlinkat "links to files";
    SYS_fchmod "modes of its own files";
    SYS_fchmodat "the same";
    SYS_fchown "of its own files, to itself: copying a folder";
    SYS_fchownat "the same";
    SYS_utimensat "times of its own files: caches of imports";
    SYS_ftruncate "sizes of files";
    SYS_truncate "the same";
    SYS_fallocate "room in a file";
    SYS_fadvise64 "reading ahead";
    SYS_fsync "writing through";
    SYS_fdatasync "the same";
    SYS_sync_file_range "the same, in part";
    SYS_copy_file_range "copying files";
    SYS_sendfile "the same";
    SYS_splice "the same, from pipes";
    SYS_getxattr "attributes of files, which copying asks for";
    SYS_lgetxattr "the same";
    SYS_fgetxattr "the same";
    SYS_listxattr "the same";
    SYS_llistxattr "the same";
    SYS_flistxattr "the same";
    SYS_pipe2 "pipes to subprocesses";
    SYS_ioctl [
        Is(1, libc::TCGETS), Is(1, libc::TIOCGWINSZ), Is(1, libc::FIONREAD),
        Is(1, libc::FIONBIO), Is(1, libc::FIOCLEX), Is(1, libc::FIONCLEX)
    ] "whether output is a terminal, its size; bytes that wait; flags of descriptors. Nothing else";
    // Waiting.
    SYS_ppoll "sleeping until a request comes";
    SYS_pselect6 "the same, as interpreters do";
    SYS_epoll_create1 "the same, for many descriptors";
    SYS_epoll_ctl "the same";
    SYS_epoll_pwait "the same";
    SYS_epoll_pwait2 "the same";
    SYS_eventfd2 "waking a thread";
    SYS_timerfd_create "timers in event loops";
    SYS_timerfd_settime "the same";
    SYS_timerfd_gettime "the same";
    SYS_signalfd4 "signals in event loops";
    SYS_futex "locks, and sleeping in shared memory until a client wakes a slot";
    SYS_nanosleep "sleeping";
    SYS_clock_nanosleep "the same";
    SYS_sched_yield "letting others run";
    // Sockets without a network: the control socket, and pairs within the sandbox.
    SYS_socket [Is(0, UNIX)] "sockets of this machine only";
    SYS_socketpair [Is(0, UNIX)] "pairs of them: event loops, subprocesses";
    SYS_bind "names of them in /tmp";
    SYS_listen "the same";
    SYS_accept4 "the same";
    SYS_accept "the same";
    SYS_connect "the same";
    SYS_sendto [HasNone(3, OUT_OF_BAND)] "messages, none of them out of band";
    SYS_recvfrom [HasNone(3, OUT_OF_BAND)] "the same";
    SYS_sendmsg [HasNone(2, OUT_OF_BAND)] "answers to the agent";
    SYS_recvmsg [HasNone(2, OUT_OF_BAND)] "its orders, and memory that comes with them";
    SYS_sendmmsg [HasNone(3, OUT_OF_BAND)] "several messages";
    SYS_recvmmsg [HasNone(3, OUT_OF_BAND)] "the same";
    SYS_shutdown "ends of connections";
    SYS_getsockname "who one is";
    SYS_getpeername "who the other is";
    SYS_getsockopt "options of sockets";
    SYS_setsockopt [
        All(&[Is(1, libc::SOL_SOCKET as u64), IsNot(2, libc::SO_LINGER as u64)]),
        All(&[Is(1, libc::IPPROTO_TCP as u64), IsNot(2, libc::TCP_ULP as u64)]),
        All(&[Is(1, libc::IPPROTO_UDP as u64), IsNot(2, libc::UDP_ENCAP as u64)]),
        Is(1, libc::IPPROTO_IP as u64), Is(1, libc::IPPROTO_IPV6 as u64), Is(1, libc::SOL_NETLINK as u64)
    ] "the same, but no close that waits (SO_LINGER): the process that is sent such a socket would wait; and no further protocol over TCP or UDP";
    // Processes and threads of its own sandbox.
    SYS_clone [HasNone(0, NAMESPACES)] "threads and subprocesses, but no namespaces";
    SYS_execve "programs: no right is to be gained by one";
    SYS_execveat "the same";
    SYS_exit "ends of threads";
    SYS_exit_group "its own end";
    SYS_wait4 "ends of subprocesses";
    SYS_waitid "the same";
    SYS_kill "signals within the sandbox";
    SYS_tkill "to a thread";
    SYS_tgkill "the same: aborting";
    SYS_pidfd_open "waiting for a subprocess without races";
    SYS_pidfd_send_signal "a signal to one without races";
    SYS_set_tid_address "starting and ending threads";
    SYS_set_robust_list "locks of a thread that dies";
    SYS_get_robust_list "the same";
    SYS_rseq "allocators that know their core";
    SYS_gettid "which thread";
    SYS_getpid "which process";
    SYS_getppid "whose child";
    SYS_getpgid "which group";
    SYS_setpgid "a group of its own: subprocesses";
    SYS_getsid "which session";
    SYS_setsid "a session of its own: subprocesses";
    SYS_getuid "who one is";
    SYS_geteuid "the same";
    SYS_getgid "the same";
    SYS_getegid "the same";
    SYS_getresuid "the same";
    SYS_getresgid "the same";
    SYS_getgroups "the same";
    SYS_capget "that it can do nothing special";
    SYS_getpriority "how nice it is";
    SYS_setpriority "being nicer";
    SYS_getrusage "what it has used";
    SYS_times "the same";
    SYS_prlimit64 "its limits, which it can only lower";
    SYS_sched_getaffinity "its cores: sizes of thread pools";
    SYS_sched_setaffinity "pinning threads; its control group keeps them on the lease's cores";
    SYS_sched_getparam "how it is scheduled";
    SYS_sched_getscheduler "the same";
    SYS_sched_get_priority_max "the same";
    SYS_sched_get_priority_min "the same";
    SYS_getcpu "where a thread is";
    SYS_prctl [
        Is(0, libc::PR_SET_NAME as u64), Is(0, libc::PR_GET_NAME as u64), Is(0, libc::PR_SET_PDEATHSIG as u64),
        Is(0, libc::PR_GET_PDEATHSIG as u64), Is(0, libc::PR_SET_DUMPABLE as u64), Is(0, libc::PR_GET_DUMPABLE as u64),
        Is(0, libc::PR_SET_THP_DISABLE as u64), Is(0, libc::PR_GET_THP_DISABLE as u64),
        Is(0, libc::PR_SET_TIMERSLACK as u64), Is(0, libc::PR_GET_TIMERSLACK as u64),
        Is(0, libc::PR_GET_NO_NEW_PRIVS as u64), Is(0, libc::PR_CAPBSET_READ as u64),
        Is(0, 0x5356_4d41)
    ] "names of threads and of memory, subprocesses that die with it, huge pages, exact timers. Nothing else";
    // Signals.
    SYS_rt_sigaction "handlers: crashes, ends of subprocesses";
    SYS_rt_sigprocmask "which signals wait";
    SYS_rt_sigreturn "coming back from a handler";
    SYS_rt_sigpending "what waits";
    SYS_rt_sigsuspend "waiting for one";
    SYS_rt_sigtimedwait "the same, not for ever";
    SYS_rt_sigqueueinfo "a signal with a value";
    SYS_rt_tgsigqueueinfo "the same, to a thread";
    SYS_sigaltstack "a stack for handlers: a crash of the stack is told, too";
    SYS_restart_syscall "going on after a stop";
    SYS_getitimer "alarms that were set";
    SYS_setitimer "the same";
    SYS_timer_create "the same";
    SYS_timer_settime "the same";
    SYS_timer_gettime "the same";
    SYS_timer_getoverrun "the same";
    SYS_timer_delete "the same";
    // The host.
    SYS_clock_gettime "the time, where the kernel's page does not tell it";
    SYS_clock_getres "how exact it is";
    SYS_gettimeofday "the time";
    SYS_getrandom "random bytes";
    SYS_uname "which kernel: what libraries may expect";
    SYS_sysinfo "how much memory there is";
};

/// Calls of zygotes. None of them makes a namespace. The namespaces that a zygote can join are children of its own,
/// made for its forks: the rights that come with them reach nothing else, and are useless with the calls above.
const ZYGOTE_CALLS: &[SystemCall] = calls! {
    SYS_setns [
        Is(1, libc::CLONE_NEWUSER as u64), Is(1, libc::CLONE_NEWNS as u64), Is(1, libc::CLONE_NEWPID as u64),
        Is(1, libc::CLONE_NEWIPC as u64), Is(1, libc::CLONE_NEWUTS as u64), Is(1, libc::CLONE_NEWNET as u64),
        Is(1, libc::CLONE_NEWCGROUP as u64)
    ] "joining the namespaces that were made for a fork";
    SYS_keyctl [Is(0, JOIN_SESSION_KEYRING)] "a keyring of a fork's own";
    SYS_prctl [
        Is(0, libc::PR_CAPBSET_DROP as u64), Is(0, libc::PR_CAP_AMBIENT as u64), Is(0, libc::PR_SET_NO_NEW_PRIVS as u64)
    ] "forbidding capabilities";
    SYS_capset "giving them up";
    SYS_landlock_create_ruleset "what a fork may do with its files";
    SYS_landlock_add_rule "the same";
    SYS_landlock_restrict_self "the same";
    // With this flag the call only installs filters, and no process is notified of refused calls.
    SYS_seccomp [Is(1, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW)] "giving all of these up";
};
const JOIN_SESSION_KEYRING: u64 = 1;

/// Calls that only old architectures have, under names of their own.
#[cfg(target_arch = "x86_64")]
const OLD: &[SystemCall] = calls! {
    SYS_arch_prctl [Is(0, 0x1001), Is(0, 0x1002), Is(0, 0x1003), Is(0, 0x1004), Is(0, 0x3001)]
        "the thread's own memory: every start of a program";
    SYS_open "as openat";
    SYS_creat "the same";
    SYS_stat "as newfstatat";
    SYS_lstat "the same";
    SYS_access "as faccessat";
    SYS_readlink "as readlinkat";
    SYS_mkdir "as mkdirat";
    SYS_rmdir "as unlinkat";
    SYS_unlink "the same";
    SYS_rename "as renameat";
    SYS_link "as linkat";
    SYS_symlink "as symlinkat";
    SYS_chmod "as fchmodat";
    SYS_chown "as fchownat";
    SYS_lchown "the same";
    SYS_utime "as utimensat";
    SYS_utimes "the same";
    SYS_futimesat "the same";
    SYS_dup2 "descriptors, as dup3";
    SYS_pipe "as pipe2";
    SYS_poll "as ppoll";
    SYS_select "as pselect6";
    SYS_epoll_create "as epoll_create1";
    SYS_epoll_wait "as epoll_pwait";
    SYS_eventfd "as eventfd2";
    SYS_signalfd "as signalfd4";
    SYS_fork "as clone";
    SYS_vfork "the same";
    SYS_getpgrp "as getpgid";
    SYS_getdents "as getdents64";
    SYS_alarm "as setitimer";
    SYS_pause "as rt_sigsuspend";
    SYS_time "as clock_gettime";
};

#[cfg(not(target_arch = "x86_64"))]
const OLD: &[SystemCall] = &[];

/// Bits of a socket's type that name the kind; the others are flags.
const KIND: u64 = 0xf;

/// A socket of this family, kind and protocol.
macro_rules! socket {
    ($family:ident, $kind:ident, $protocol:expr) => {
        All(&[
            Is(0, libc::$family as u64),
            MaskedIs(1, KIND, libc::$kind as u64),
            Is(2, $protocol as u64),
        ])
    };
}

// The kernel has more protocols for these families (MPTCP, UDP-Lite, SCTP, DCCP, ICMP), and 20 services behind netlink.
// They are rarely used code of the kernel, and Landlock's rules for TCP do not cover them.
const NETWORK: &[SystemCall] = calls! {
    SYS_socket [
        socket!(AF_INET, SOCK_STREAM, 0), socket!(AF_INET, SOCK_STREAM, libc::IPPROTO_TCP),
        socket!(AF_INET, SOCK_DGRAM, 0), socket!(AF_INET, SOCK_DGRAM, libc::IPPROTO_UDP),
        socket!(AF_INET6, SOCK_STREAM, 0), socket!(AF_INET6, SOCK_STREAM, libc::IPPROTO_TCP),
        socket!(AF_INET6, SOCK_DGRAM, 0), socket!(AF_INET6, SOCK_DGRAM, libc::IPPROTO_UDP),
        All(&[Is(0, libc::AF_NETLINK as u64), Is(2, libc::NETLINK_ROUTE as u64)])
    ] "where the site grants a network: TCP and UDP, and asking which interfaces and routes there are";
};

const STORAGE: &[SystemCall] = calls! {
    SYS_socket [
        socket!(AF_INET, SOCK_STREAM, 0), socket!(AF_INET, SOCK_STREAM, libc::IPPROTO_TCP),
        socket!(AF_INET, SOCK_DGRAM, 0), socket!(AF_INET, SOCK_DGRAM, libc::IPPROTO_UDP)
    ] "where a lease reaches object storage: the loopback of a network with nothing else in it";
};

const MACHINE: &[SystemCall] = calls! {
    SYS_ioctl [MaskedIs(1, 0xff00, KVM)] "machines and their processors: only /dev/kvm and what it gives know these";
};
/// Type number of the hypervisor's ioctl requests.
const KVM: u64 = 0xae00;

const RUNTIME: &[SystemCall] = calls! {
    SYS_unshare [Is(0, (libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as u64)] "a container's own users and mounts";
    SYS_mount "its root, and what is bound there";
    SYS_umount2 "leaving the runtime's root";
    SYS_pivot_root "the same";
    SYS_chroot "the same";
    SYS_prctl [Is(0, libc::PR_SET_NO_NEW_PRIVS as u64)] "no new privileges, once more";
};

#[cfg(test)]
mod tests;
