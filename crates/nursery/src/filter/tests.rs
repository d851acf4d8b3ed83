use super::*;
use crate::system_calls::{self, table, table_of_zygote};

/// Runs a program for one call; returns the decision and the number of steps. Interprets classic BPF, as far as filters
/// use it.
fn run(program: &[sock_filter], number: u32, architecture: u32, arguments: [u64; 6]) -> (u32, usize) {
    let mut data = Vec::new();
    for word in [number, architecture, 0, 0] {
        data.extend(word.to_ne_bytes());
    }
    data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
    let (mut at, mut held, mut steps) = (0, 0_u32, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        steps += 1;
        let branch = |yes: bool| usize::from(if yes { jt } else { jf });
        match code {
            0x20 => held = u32::from_ne_bytes(data[k as usize..][..4].try_into().unwrap()),
            0x54 => held &= k,
            0x05 => at += k as usize,
            0x15 => at += branch(held == k),
            0x25 => at += branch(held > k),
            0x35 => at += branch(held >= k),
            0x06 => return (k, steps),
            other => panic!("instruction {other:#x} is not known here"),
        }
    }
}

fn here() -> u32 {
    match std::env::consts::ARCH {
        "x86_64" => 0xc000_003e,
        "aarch64" => 0xc000_00b7,
        other => panic!("no number of {other} is known here"),
    }
}

const ALLOW: u32 = 0x7fff_0000;
const MISSING: u32 = 0x0005_0000 | libc::ENOSYS as u32;

#[test]
fn a_tree_decides_as_the_plain_filter_does() {
    let tables: [&dyn Fn() -> Vec<&'static SystemCall>; 4] = [
        &|| table(false).collect(),
        &|| table(true).collect(),
        &|| table_of_zygote().collect(),
        &|| system_calls::lost_by_forks().collect(),
    ];
    let values = [
        0,
        1,
        2,
        3,
        10,
        0x4000,
        0x1000_0000,
        0x5401,
        0xae80,
        u64::from(u32::MAX),
        u64::MAX,
    ];
    for calls in tables {
        for (others, these) in [
            (SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow),
            (SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32)),
        ] {
            let calls = calls();
            let plain = linear(rules(calls.iter().copied()).unwrap(), &others, &these).unwrap();
            let tree = compiled(calls.iter().copied(), &others, &these).unwrap();
            // Includes numbers of the other ABI of x86-64, which has the same architecture number.
            let numbers = (0..1024)
                .chain(0x4000_0000..0x4000_0400)
                .chain([u32::MAX - 1, u32::MAX]);
            for number in numbers {
                for value in values {
                    for argument in 0..6 {
                        let mut arguments = [0; 6];
                        arguments[argument] = value;
                        let expected = run(&plain, number, here(), arguments).0;
                        let decided = run(&tree, number, here(), arguments).0;
                        assert_eq!(decided, expected, "call {number}, argument {argument}: {value:#x}");
                    }
                }
            }
        }
    }
}

#[test]
fn no_call_of_another_architecture_is_decided_on() {
    let tree = allowing(table(false)).unwrap();
    for number in 0..1024 {
        let (decided, _) = run(&tree, number, 0x4000_0003, [0; 6]);
        assert_eq!(decided, libc::SECCOMP_RET_KILL_PROCESS, "call {number} of 32 bits");
    }
}

#[test]
fn no_socket_can_be_made_whose_close_waits() {
    for calls in [table(true).collect::<Vec<_>>(), table_of_zygote().collect()] {
        let tree = allowing(calls.into_iter()).unwrap();
        let decided = |level: u64, option: u64| {
            let arguments = [3, level, option, 0, 0, 0];
            run(&tree, libc::SYS_setsockopt as u32, here(), arguments).0
        };
        let (level, option) = (libc::SOL_SOCKET as u64, libc::SO_LINGER as u64);
        assert_eq!(decided(level, option), MISSING);
        assert_eq!(
            decided(level | 1 << 32, option | 1 << 32),
            MISSING,
            "the kernel takes 32 bits"
        );
        assert_eq!(decided(level, libc::SO_KEEPALIVE as u64), ALLOW);
        assert_eq!(decided(libc::IPPROTO_TCP as u64, option), ALLOW);
    }
}

#[test]
fn no_socket_gets_a_further_protocol() {
    let storage: Vec<_> = system_calls::table_with_storage().collect();
    for calls in [table(false).collect(), table(true).collect(), storage] {
        let calls: Vec<&'static SystemCall> = calls;
        let tree = allowing(calls.into_iter()).unwrap();
        let decided = |level: i32, option: i32, high: u64| {
            let [level, option] = [level, option].map(|number| u64::from(number.cast_unsigned()) | high);
            run(&tree, libc::SYS_setsockopt as u32, here(), [3, level, option, 0, 0, 0]).0
        };
        let (tcp, udp) = (libc::IPPROTO_TCP, libc::IPPROTO_UDP);
        for high in [0, 1 << 32] {
            assert_eq!(decided(tcp, libc::TCP_ULP, high), MISSING);
            assert_eq!(decided(udp, libc::UDP_ENCAP, high), MISSING);
            assert_eq!(decided(libc::IPPROTO_SCTP, 0, high), MISSING);
            for (level, option) in [
                (tcp, libc::TCP_NODELAY),
                (tcp, libc::UDP_ENCAP),
                (udp, libc::UDP_SEGMENT),
                (udp, libc::TCP_ULP),
                (libc::IPPROTO_IP, libc::IP_TOS),
                (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
                (libc::SOL_NETLINK, libc::NETLINK_EXT_ACK),
            ] {
                assert_eq!(decided(level, option, high), ALLOW, "level {level}, option {option}");
            }
        }
    }
}

#[test]
fn no_lock_can_be_made_whose_holder_is_unknown() {
    for calls in [table(true).collect::<Vec<_>>(), table_of_zygote().collect()] {
        let tree = allowing(calls.into_iter()).unwrap();
        let decided = |command: i32, high: u64| {
            let arguments = [3, u64::from(command.cast_unsigned()) | high, 0, 0, 0, 0];
            run(&tree, libc::SYS_fcntl as u32, here(), arguments).0
        };
        for command in [libc::F_OFD_GETLK, libc::F_OFD_SETLK, libc::F_OFD_SETLKW] {
            assert_eq!(decided(command, 0), MISSING, "{command}");
            assert_eq!(decided(command, 1 << 32), MISSING, "the kernel takes 32 bits");
        }
        for command in [
            libc::F_GETLK,
            libc::F_SETLK,
            libc::F_SETLKW,
            libc::F_DUPFD_CLOEXEC,
            libc::F_SETFL,
        ] {
            assert_eq!(decided(command, 0), ALLOW, "{command}");
        }
    }
}

#[test]
fn a_network_is_tcp_and_udp_and_a_listing_of_interfaces() {
    let (with, without) = (allowing(table(true)).unwrap(), allowing(table(false)).unwrap());
    let storage = allowing(system_calls::table_with_storage()).unwrap();
    let is_allowed = |tree: &BpfProgram, [family, kind, protocol]: [i32; 3], high: u64| {
        let arguments = [family, kind, protocol].map(|argument| u64::from(argument.cast_unsigned()) | high);
        let arguments = [arguments[0], arguments[1], arguments[2], 0, 0, 0];
        run(tree, libc::SYS_socket as u32, here(), arguments).0 == ALLOW
    };
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let families = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
    let mut allowed = Vec::new();
    for family in families {
        for kind in 0..16 {
            for protocol in 0..512 {
                let socket = [family, kind, protocol];
                let is = is_allowed(&with, socket, 0);
                assert_eq!(
                    is_allowed(&with, [family, kind | flags, protocol], 0),
                    is,
                    "{socket:?} with flags"
                );
                assert_eq!(
                    is_allowed(&with, socket, 1 << 32),
                    is,
                    "{socket:?}: the kernel takes 32 bits"
                );
                assert!(!is_allowed(&without, socket, 0), "{socket:?} without a network");
                let in_storage = is && family == libc::AF_INET;
                assert_eq!(is_allowed(&storage, socket, 0), in_storage, "{socket:?} with storage");
                if is && family != libc::AF_NETLINK {
                    allowed.push((family, kind, protocol));
                }
                // Only netlink's service of interfaces and routes is allowed, by either kind of socket.
                let is_route = protocol == libc::NETLINK_ROUTE;
                assert!(
                    family != libc::AF_NETLINK || is == is_route,
                    "netlink {protocol}, kind {kind}"
                );
            }
        }
        assert!(!is_allowed(&with, [family, libc::SOCK_STREAM, -1], 0));
    }
    let (tcp, udp) = (
        (libc::SOCK_STREAM, libc::IPPROTO_TCP),
        (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
    );
    let expected = [libc::AF_INET, libc::AF_INET6].into_iter().flat_map(|family| {
        let of = move |(kind, protocol)| [(family, kind, 0), (family, kind, protocol)];
        of(tcp).into_iter().chain(of(udp))
    });
    assert_eq!(allowed, expected.collect::<Vec<_>>());
    assert!(is_allowed(&with, [libc::AF_UNIX, libc::SOCK_SEQPACKET, 0], 0));
}

#[test]
fn a_decision_about_any_call_takes_few_steps() {
    let calls: Vec<_> = table(false).collect();
    let tree = allowing(calls.iter().copied()).unwrap();
    let steps: Vec<_> = (0..1024).map(|number| run(&tree, number, here(), [0; 6])).collect();
    let allowed = steps.iter().filter(|(decided, _)| *decided == ALLOW).count();
    let missing = steps.iter().filter(|(decided, _)| *decided == MISSING).count();
    assert_eq!(allowed + missing, steps.len());
    assert!(allowed > 100, "the table allows {allowed} calls only");
    let most = steps.iter().map(|(_, steps)| *steps).max().unwrap();
    assert!(
        most < 100,
        "a call takes {most} steps: the kernel runs them all for each start"
    );
}
