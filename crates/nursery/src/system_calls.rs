//! System calls that code in a sandbox may make. Every other call fails as if the kernel did not have it.
//!
//! A call is in the base table because a worker, an interpreter or a numeric library needs it. Calls that reach beyond
//! the sandbox's own processes, memory and files are not in this table, nor are calls into parts of the kernel that are
//! rarely used and often broken: `ptrace`, `mount`, `bpf`, `io_uring`, `userfaultfd`, `perf_event_open`, and the calls
//! for keys, modules, namespaces, and for setting clocks. A container runtime and a zygote get a few of these calls
//! from tables of their own. docs/sandboxes.md shows the base table.

/// A condition on an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentRule {
    /// The argument with this index, from 0, has this value.
    Is(u8, u64),
    /// The argument with this index has another value.
    IsNot(u8, u64),
    /// None of these bits are set in the argument.
    HasNone(u8, u64),
    /// Of the bits in the mask (the second number), exactly the bits of the last number are set.
    MaskedIs(u8, u64, u64),
    /// Each of these rules holds. Their arguments differ, because a container runtime treats two conditions on one
    /// argument as alternatives.
    All(&'static [ArgumentRule]),
}

/// A system call that is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemCall {
    constant: &'static str,
    /// Number of the call on this architecture.
    pub number: i64,
    /// At least one rule must hold. Without rules the call is always allowed.
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

/// Calls of a sandbox without a network but with access to object storage. If the kernel has Landlock for TCP, it
/// allows connections to one port of the sandbox's loopback only.
pub fn table_with_storage() -> impl Iterator<Item = &'static SystemCall> {
    table(false).chain(STORAGE)
}

/// Calls of a sandbox that runs a virtual machine with the processor's help.
pub fn table_of_machine(network: bool) -> impl Iterator<Item = &'static SystemCall> {
    table(network).chain(MACHINE)
}

/// Calls of Charliecloud, which still has to make the root. One of the added calls makes a user namespace, in which its
/// caller has capabilities, and the calls for mounts and roots need capabilities. `max_user_namespaces` allows only the
/// user namespaces that Charliecloud itself makes (container/template.rs). So code of the tenant can make no further
/// user namespace, gets no capabilities, and cannot use these calls.
pub fn table_of_runtime(network: bool) -> impl Iterator<Item = &'static SystemCall> {
    table(network).chain(RUNTIME)
}

/// Calls of a zygote: its forks also need calls to join their own namespaces and to be confined there.
pub fn table_of_zygote() -> impl Iterator<Item = &'static SystemCall> {
    table(false).chain(ZYGOTE_CALLS)
}

/// Calls of a zygote if virtual machines run with the processor's help.
pub fn table_of_zygote_of_machines() -> impl Iterator<Item = &'static SystemCall> {
    table_of_zygote().chain(MACHINE)
}

/// Calls that a zygote's forks lose once they are in place: all calls that only zygotes may make.
pub fn lost_by_forks() -> impl Iterator<Item = &'static SystemCall> {
    ZYGOTE_CALLS.iter()
}

/// Flags of clone(2) that make namespaces.
const NAMESPACES: u64 = 0x7e02_0000;
const UNIX: u64 = libc::AF_UNIX as u64;
/// Bit of the commands of fcntl(2) that only Linux has. Among them are F_NOTIFY and F_SETLEASE, which report what other
/// processes do with a file or folder.
const LINUX_FCNTL: u64 = 1024;
/// Bit of F_OFD_GETLK, F_OFD_SETLK and F_OFD_SETLKW, and of no other command. The agent can find no process that owns
/// such a lock, so a claim of a shared core by such a lock could not be ended.
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
    SYS_mincore "asking whether pages are in memory";
    SYS_mlock "pinning pages that a device reads";
    SYS_munlock "unpinning them";
    SYS_memfd_create "memory that has a descriptor: channels of its own";
    SYS_membarrier "fences between threads, which language runtimes use";
    SYS_get_mempolicy "asking on which memory node pages are: numeric libraries on several sockets";
    SYS_mbind "choosing the memory node of pages: numeric libraries on several sockets";
    SYS_set_mempolicy "choosing the memory node of a thread: numeric libraries on several sockets";
    // Descriptors and files: only what is mounted, and within the program's rights.
    SYS_read "files, sockets, counters";
    SYS_write "files, sockets, output";
    SYS_readv "reading into several buffers";
    SYS_writev "writing from several buffers";
    SYS_pread64 "reading a file at an offset";
    SYS_pwrite64 "writing a file at an offset";
    SYS_preadv "reading a file at an offset into several buffers";
    SYS_pwritev "writing a file at an offset from several buffers";
    SYS_openat "opening files and libraries";
    SYS_close "closing descriptors";
    SYS_close_range "closing many descriptors before a program is executed";
    SYS_dup "descriptors of a subprocess";
    SYS_dup3 "descriptors of a subprocess";
    SYS_fcntl [HasNone(1, LINUX_FCNTL | FILE_LOCKS), Is(1, libc::F_DUPFD_CLOEXEC as u64), Is(1, libc::F_SETPIPE_SZ as u64),
        Is(1, libc::F_GETPIPE_SZ as u64), Is(1, libc::F_ADD_SEALS as u64), Is(1, libc::F_GET_SEALS as u64)]
        "flags of descriptors; locks that name their process, like the claim of a shared core. No notification of what other processes do with a file";
    SYS_flock "locks on files";
    SYS_lseek "positions in files";
    SYS_fstat "type and size of an open file";
    SYS_newfstatat "type and size of a file by its path";
    SYS_statx "type and size of a file, as newer libraries ask for them";
    SYS_statfs "free space of a file system";
    SYS_fstatfs "free space of a file system";
    SYS_getdents64 "listing folders: imports";
    SYS_readlinkat "reading links: how an interpreter finds its folder";
    SYS_faccessat "whether a file may be read";
    SYS_faccessat2 "whether a file may be read, as newer libraries ask for it";
    SYS_getcwd "the working directory";
    SYS_chdir "changing the working directory";
    SYS_fchdir "changing the working directory";
    SYS_umask "mode of new files";
    SYS_mkdirat "folders in /tmp";
    SYS_unlinkat "removing files";
    SYS_renameat "replacing a file atomically";
    SYS_renameat2 "replacing a file atomically";
    SYS_linkat "hard links to files";
    SYS_symlinkat "symbolic links to files";
    SYS_fchmod "mode of its own files";
    SYS_fchmodat "mode of its own files";
    SYS_fchown "setting the owner of its own files to itself: copying a folder";
    SYS_fchownat "setting the owner of its own files to itself: copying a folder";
    SYS_utimensat "times of its own files: caches of imports";
    SYS_ftruncate "size of a file";
    SYS_truncate "size of a file";
    SYS_fallocate "reserving space in a file";
    SYS_fadvise64 "reading ahead";
    SYS_fsync "writing a file to disk";
    SYS_fdatasync "writing a file to disk";
    SYS_sync_file_range "writing a part of a file to disk";
    SYS_copy_file_range "copying files";
    SYS_sendfile "copying a file to a socket";
    SYS_splice "copying to and from pipes";
    SYS_getxattr "attributes of files, which copying a file reads";
    SYS_lgetxattr "attributes of files, which copying a file reads";
    SYS_fgetxattr "attributes of files, which copying a file reads";
    SYS_listxattr "attributes of files, which copying a file reads";
    SYS_llistxattr "attributes of files, which copying a file reads";
    SYS_flistxattr "attributes of files, which copying a file reads";
    SYS_pipe2 "pipes to subprocesses";
    SYS_ioctl [
        Is(1, libc::TCGETS), Is(1, libc::TIOCGWINSZ), Is(1, libc::FIONREAD),
        Is(1, libc::FIONBIO), Is(1, libc::FIOCLEX), Is(1, libc::FIONCLEX)
    ] "whether output is a terminal, and its size; number of bytes that wait; flags of descriptors. Nothing else";
    // Waiting.
    SYS_ppoll "sleeping until a request arrives";
    SYS_pselect6 "sleeping until a request arrives, as interpreters do";
    SYS_epoll_create1 "sleeping until one of many descriptors is ready";
    SYS_epoll_ctl "sleeping until one of many descriptors is ready";
    SYS_epoll_pwait "sleeping until one of many descriptors is ready";
    SYS_epoll_pwait2 "sleeping until one of many descriptors is ready";
    SYS_eventfd2 "waking a thread";
    SYS_timerfd_create "timers in event loops";
    SYS_timerfd_settime "timers in event loops";
    SYS_timerfd_gettime "timers in event loops";
    SYS_signalfd4 "signals in event loops";
    SYS_futex "locks, and sleeping in shared memory until a client wakes a slot";
    SYS_nanosleep "sleeping";
    SYS_clock_nanosleep "sleeping";
    SYS_sched_yield "giving up the processor";
    // Sockets without a network: the control socket, and pairs within the sandbox.
    SYS_socket [Is(0, UNIX)] "sockets within the sandbox only";
    SYS_socketpair [Is(0, UNIX)] "pairs of connected sockets: event loops, subprocesses";
    SYS_bind "naming a Unix socket in /tmp";
    SYS_listen "servers on Unix sockets";
    SYS_accept4 "servers on Unix sockets";
    SYS_accept "servers on Unix sockets";
    SYS_connect "clients of Unix sockets";
    SYS_sendto [HasNone(3, OUT_OF_BAND)] "sending a message, but no out-of-band data";
    SYS_recvfrom [HasNone(3, OUT_OF_BAND)] "receiving a message, but no out-of-band data";
    SYS_sendmsg [HasNone(2, OUT_OF_BAND)] "answers to the agent";
    SYS_recvmsg [HasNone(2, OUT_OF_BAND)] "orders of the agent, and the memory that comes with them";
    SYS_sendmmsg [HasNone(3, OUT_OF_BAND)] "sending several messages";
    SYS_recvmmsg [HasNone(3, OUT_OF_BAND)] "receiving several messages";
    SYS_shutdown "closing one direction of a connection";
    SYS_getsockname "address of a socket";
    SYS_getpeername "address of the other end of a socket";
    SYS_getsockopt "options of sockets";
    SYS_setsockopt [
        All(&[Is(1, libc::SOL_SOCKET as u64), IsNot(2, libc::SO_LINGER as u64)]),
        All(&[Is(1, libc::IPPROTO_TCP as u64), IsNot(2, libc::TCP_ULP as u64)]),
        All(&[Is(1, libc::IPPROTO_UDP as u64), IsNot(2, libc::UDP_ENCAP as u64)]),
        Is(1, libc::IPPROTO_IP as u64), Is(1, libc::IPPROTO_IPV6 as u64), Is(1, libc::SOL_NETLINK as u64)
    ] "options of sockets, but no close that waits (SO_LINGER), because a process that receives such a socket would wait; and no further protocol over TCP or UDP";
    // Processes and threads of its own sandbox.
    SYS_clone [HasNone(0, NAMESPACES)] "threads and subprocesses, but no namespaces";
    SYS_execve "executing programs: none can gain rights";
    SYS_execveat "executing programs: none can gain rights";
    SYS_exit "ending a thread";
    SYS_exit_group "ending the process";
    SYS_wait4 "waiting for a subprocess";
    SYS_waitid "waiting for a subprocess";
    SYS_kill "signals within the sandbox";
    SYS_tkill "a signal to a thread";
    SYS_tgkill "a signal to a thread: aborting";
    SYS_pidfd_open "waiting for a subprocess without races";
    SYS_pidfd_send_signal "a signal to a subprocess without races";
    SYS_set_tid_address "starting and ending threads";
    SYS_set_robust_list "releasing the locks of a thread that dies";
    SYS_get_robust_list "releasing the locks of a thread that dies";
    SYS_rseq "allocators that keep memory for each core";
    SYS_gettid "number of the thread";
    SYS_getpid "number of the process";
    SYS_getppid "number of the parent process";
    SYS_getpgid "number of the process group";
    SYS_setpgid "a process group of its own: subprocesses";
    SYS_getsid "number of the session";
    SYS_setsid "a session of its own: subprocesses";
    SYS_getuid "number of the user";
    SYS_geteuid "number of the user";
    SYS_getgid "number of the group";
    SYS_getegid "number of the group";
    SYS_getresuid "number of the user";
    SYS_getresgid "number of the group";
    SYS_getgroups "groups of the user";
    SYS_capget "asking for capabilities: it has none";
    SYS_getpriority "scheduling priority";
    SYS_setpriority "lowering the scheduling priority";
    SYS_getrusage "processor time and memory that it has used";
    SYS_times "processor time that it has used";
    SYS_prlimit64 "its resource limits, which it can only lower";
    SYS_sched_getaffinity "its cores: sizes of thread pools";
    SYS_sched_setaffinity "pinning threads; its control group keeps them on the lease's cores";
    SYS_sched_getparam "scheduling policy";
    SYS_sched_getscheduler "scheduling policy";
    SYS_sched_get_priority_max "scheduling policy";
    SYS_sched_get_priority_min "scheduling policy";
    SYS_getcpu "core on which a thread runs";
    SYS_prctl [
        Is(0, libc::PR_SET_NAME as u64), Is(0, libc::PR_GET_NAME as u64), Is(0, libc::PR_SET_PDEATHSIG as u64),
        Is(0, libc::PR_GET_PDEATHSIG as u64), Is(0, libc::PR_SET_DUMPABLE as u64), Is(0, libc::PR_GET_DUMPABLE as u64),
        Is(0, libc::PR_SET_THP_DISABLE as u64), Is(0, libc::PR_GET_THP_DISABLE as u64),
        Is(0, libc::PR_SET_TIMERSLACK as u64), Is(0, libc::PR_GET_TIMERSLACK as u64),
        Is(0, libc::PR_GET_NO_NEW_PRIVS as u64), Is(0, libc::PR_CAPBSET_READ as u64),
        Is(0, 0x5356_4d41)
    ] "names of threads and of memory, subprocesses that die with their parent, huge pages, exact timers. Nothing else";
    // Signals.
    SYS_rt_sigaction "handlers: crashes, ends of subprocesses";
    SYS_rt_sigprocmask "blocking signals";
    SYS_rt_sigreturn "returning from a handler";
    SYS_rt_sigpending "asking which signals are pending";
    SYS_rt_sigsuspend "waiting for a signal";
    SYS_rt_sigtimedwait "waiting for a signal, with a limit";
    SYS_rt_sigqueueinfo "a signal with a value";
    SYS_rt_tgsigqueueinfo "a signal with a value, to a thread";
    SYS_sigaltstack "a stack for handlers, so that a stack overflow is reported, too";
    SYS_restart_syscall "resuming a call after a stop";
    SYS_getitimer "timers that send a signal";
    SYS_setitimer "timers that send a signal";
    SYS_timer_create "timers that send signals";
    SYS_timer_settime "timers that send signals";
    SYS_timer_gettime "timers that send signals";
    SYS_timer_getoverrun "timers that send signals";
    SYS_timer_delete "timers that send signals";
    // The host.
    SYS_clock_gettime "the time, where the vDSO does not give it";
    SYS_clock_getres "resolution of a clock";
    SYS_gettimeofday "the time";
    SYS_getrandom "random bytes";
    SYS_uname "version of the kernel: what libraries may expect";
    SYS_sysinfo "amount of memory";
};

/// Calls of zygotes. None of them makes a namespace. The namespaces that a zygote can join are children of its own
/// namespaces, made for its forks. A process that joins such a child gets capabilities, which apply inside this child
/// only. With these calls it can use the capabilities for nothing but to enter the child's other namespaces, and to be
/// confined there.
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
    SYS_capset "giving capabilities up";
    SYS_landlock_create_ruleset "restricting what a fork may do with its files";
    SYS_landlock_add_rule "restricting what a fork may do with its files";
    SYS_landlock_restrict_self "restricting what a fork may do with its files";
    // With this flag the call only installs filters, and no process is notified of refused calls.
    SYS_seccomp [Is(1, libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW)] "giving up the calls of this table";
};
const JOIN_SESSION_KEYRING: u64 = 1;

/// Calls that only old architectures have, under names of their own.
#[cfg(target_arch = "x86_64")]
const OLD: &[SystemCall] = calls! {
    SYS_arch_prctl [Is(0, 0x1001), Is(0, 0x1002), Is(0, 0x1003), Is(0, 0x1004), Is(0, 0x3001)]
        "thread-local memory: every start of a program";
    SYS_open "as openat";
    SYS_creat "as openat";
    SYS_stat "as newfstatat";
    SYS_lstat "as newfstatat";
    SYS_access "as faccessat";
    SYS_readlink "as readlinkat";
    SYS_mkdir "as mkdirat";
    SYS_rmdir "as unlinkat";
    SYS_unlink "as unlinkat";
    SYS_rename "as renameat";
    SYS_link "as linkat";
    SYS_symlink "as symlinkat";
    SYS_chmod "as fchmodat";
    SYS_chown "as fchownat";
    SYS_lchown "as fchownat";
    SYS_utime "as utimensat";
    SYS_utimes "as utimensat";
    SYS_futimesat "as utimensat";
    SYS_dup2 "descriptors, as dup3";
    SYS_pipe "as pipe2";
    SYS_poll "as ppoll";
    SYS_select "as pselect6";
    SYS_epoll_create "as epoll_create1";
    SYS_epoll_wait "as epoll_pwait";
    SYS_eventfd "as eventfd2";
    SYS_signalfd "as signalfd4";
    SYS_fork "as clone";
    SYS_vfork "as clone";
    SYS_getpgrp "as getpgid";
    SYS_getdents "as getdents64";
    SYS_alarm "as setitimer";
    SYS_pause "as rt_sigsuspend";
    SYS_time "as clock_gettime";
};

#[cfg(not(target_arch = "x86_64"))]
const OLD: &[SystemCall] = &[];

/// Bits of a socket's type that name the kind; the other bits are flags.
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
    SYS_ioctl [MaskedIs(1, 0xff00, KVM)] "machines and their processors: requests that only /dev/kvm and its descriptors have";
};
/// Type number of the hypervisor's ioctl requests.
const KVM: u64 = 0xae00;

const RUNTIME: &[SystemCall] = calls! {
    SYS_unshare [Is(0, (libc::CLONE_NEWUSER | libc::CLONE_NEWNS) as u64)] "a container's own users and mounts";
    SYS_mount "the container's root, and bind mounts in it";
    SYS_umount2 "leaving the runtime's root";
    SYS_pivot_root "leaving the runtime's root";
    SYS_chroot "leaving the runtime's root";
    SYS_prctl [Is(0, libc::PR_SET_NO_NEW_PRIVS as u64)] "forbidding new privileges, which the runtime does again";
};

#[cfg(test)]
mod tests;
