//! Attempts at the network, and at sockets of other processes on this host.

use crate::attempt::{AttemptResult, Capability, StopReason, Threat, attempts, denied, with_place};
use crate::syscall::{judge_senseless_call, kernel};
use crate::variables::{number, path, text};
use nix::errno::Errno;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::{Duration, Instant};

pub(super) const THEME: Threat = Threat {
    threat: "use a network or sockets that were not granted",
    attempts: attempts! {
        "tcp-loopback", "connect to the neighbour's port on the loopback interface", tcp_loopback, by_secret(), networked();
        "udp-loopback", "send the neighbour a datagram over the loopback interface", udp_loopback, by_effect(), networked();
        "abstract-socket", "connect to the neighbour's abstract socket", abstract_socket, by_secret();
        "path-socket", "connect to the neighbour's socket in the file system", path_socket, by_secret();
        "proc-net-unix", "find the neighbour's sockets in /proc/net/unix", proc_net_unix, networked();
        "listen", "listen on a port that others on the host can reach", listen, networked();
        "route-outside", "have a route to hosts outside", route_outside, needs("a route"), networked();
        "metadata-service", "have a route to the cloud's metadata service, which gives credentials",
            metadata_service, needs("a route"), networked();
        "interfaces", "see a network interface of the host", interfaces, needs("an interface"), networked();
        "system-sockets", "connect to a daemon's socket: Docker, containerd, D-Bus, systemd",
            system_sockets, need_not_succeed();
        "raw-socket", "send packets of its own making (SOCK_RAW)", raw_socket, with_capability(Capability::NetRaw);
        "packet-socket", "listen to all packets of an interface (AF_PACKET)",
            packet_socket, with_capability(Capability::NetRaw), needs("packet sockets");
        "netlink-devices", "listen to the kernel's messages about devices", netlink_devices, needs("netlink");
        "netlink-filter", "talk to the packet filter (nftables)", netlink_filter, needs("nftables");
        "netlink-rare", "talk to another of the kernel's services behind netlink than that of interfaces",
            netlink_rare, needs("netlink");
        "mptcp", "open a socket of several paths (MPTCP), which rules for TCP do not cover", mptcp, needs("MPTCP");
        "tcp-protocols", "have the kernel put a protocol over TCP (TCP_ULP), such as TLS", tcp_protocols, needs("Linux 4.13");
        "udp-lite", "open a socket of UDP-Lite, which hardly any program uses", udp_lite, needs("UDP-Lite");
        "vsock", "open a socket to the hypervisor (AF_VSOCK)", vsock, needs("AF_VSOCK");
        "kernel-crypto", "open a socket to the kernel's cryptography (AF_ALG)", kernel_crypto, needs("AF_ALG");
        "rare-protocols", "open a socket of a protocol that hardly any program uses",
            rare_protocols, need_not_succeed();
    },
};

fn banner(mut from: impl Read) -> AttemptResult {
    let mut read = String::new();
    from.read_to_string(&mut read)?;
    Ok(read)
}

fn tcp_loopback() -> AttemptResult {
    let address = (Ipv4Addr::LOCALHOST, number::<u16>("TCP")?);
    banner(TcpStream::connect(address).map_err(with_place("connect"))?)
}

fn udp_loopback() -> AttemptResult {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(with_place("bind"))?;
    socket.send_to(b"hello", (Ipv4Addr::LOCALHOST, number::<u16>("UDP")?))?;
    Ok("sent a datagram".into())
}

fn abstract_socket() -> AttemptResult {
    let address = SocketAddr::from_abstract_name(text("ABSTRACT")?)?;
    banner(UnixStream::connect_addr(&address).map_err(with_place("connect"))?)
}

fn path_socket() -> AttemptResult {
    banner(UnixStream::connect(path("SOCKET")?).map_err(with_place("connect"))?)
}

fn proc_net_unix() -> AttemptResult {
    let token = text("NEIGHBOUR_TOKEN")?;
    let list = fs::read_to_string("/proc/net/unix").map_err(with_place("/proc/net/unix"))?;
    match list.lines().find(|line| line.contains(&token)) {
        Some(line) => Ok(format!("sees {line}")),
        None => denied("not in the listing"),
    }
}

fn listen() -> AttemptResult {
    let port: u16 = number("LISTEN")?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).map_err(with_place("bind"))?;
    listener.set_nonblocking(true)?;
    // A process outside repeats its connection attempts for longer than this.
    let patience = Duration::from_millis(number("LISTEN_MILLIS")?);
    let begin = Instant::now();
    while begin.elapsed() < patience {
        if let Ok((_, from)) = listener.accept() {
            return Ok(format!("{from} connected"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    denied("no process outside can connect")
}

/// Looks up a route, and sends nothing.
fn route(to: [u8; 4]) -> AttemptResult {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(with_place("bind"))?;
    socket
        .connect((Ipv4Addr::from(to), 80))
        .map_err(with_place("connect"))?;
    Ok(format!("would send from {}", socket.local_addr()?))
}

fn route_outside() -> AttemptResult {
    // The address is reserved for documentation.
    route([192, 0, 2, 1])
}

fn metadata_service() -> AttemptResult {
    route([169, 254, 169, 254])
}

fn interfaces() -> AttemptResult {
    let mut stopped = StopReason::Denied("none but lo".into());
    match nix::net::if_::if_nameindex() {
        Ok(list) => {
            if let Some(one) = list.iter().find(|one| one.name() != c"lo") {
                return Ok(format!("sees {}", one.name().to_string_lossy()));
            }
        }
        Err(errno) => stopped = with_place("netlink")(errno),
    }
    let devices = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names = devices.lines().filter_map(|line| line.split_once(':'));
    match names.map(|(name, _)| name.trim()).find(|name| *name != "lo") {
        Some(name) => Ok(format!("sees {name} in /proc/net/dev")),
        None => Err(stopped),
    }
}

const SYSTEM_SOCKETS: [&str; 14] = [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/systemd/notify",
    "/run/systemd/journal/stdout",
    "/run/munge/munge.socket.2",
    "/run/nscd/socket",
    "/run/slurmd/slurmd.socket",
    "/run/libvirt/libvirt-sock",
    "/run/snapd.socket",
];

fn system_sockets() -> AttemptResult {
    let mut stopped = StopReason::Denied("none is there".into());
    for name in SYSTEM_SOCKETS {
        match UnixStream::connect(name) {
            Ok(_) => return Ok(format!("connected to {name}")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => stopped = with_place(name)(error),
        }
    }
    Err(stopped)
}

/// Opens a socket, which suffices as evidence.
fn socket(family: i32, kind: i32, protocol: i32) -> AttemptResult {
    kernel!(SYS_socket, family, kind, protocol)?;
    Ok(format!("opened a socket of family {family}"))
}

fn raw_socket() -> AttemptResult {
    socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP)
}

fn packet_socket() -> AttemptResult {
    socket(libc::AF_PACKET, libc::SOCK_RAW, 0)
}

fn netlink_devices() -> AttemptResult {
    let fd = kernel!(
        SYS_socket,
        libc::AF_NETLINK,
        libc::SOCK_RAW,
        libc::NETLINK_KOBJECT_UEVENT
    )?;
    // sockaddr_nl: family, padding, port, groups.
    let address = [libc::AF_NETLINK as u32, 0, 1];
    kernel!(SYS_bind, fd, address.as_ptr(), 12)?;
    Ok("hears of the host's devices".into())
}

fn netlink_filter() -> AttemptResult {
    socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER)
}

fn netlink_rare() -> AttemptResult {
    let mut stopped = StopReason::Denied("none".into());
    for protocol in (0..32).filter(|protocol| *protocol != libc::NETLINK_ROUTE) {
        match socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol) {
            Ok(_) => return Ok(format!("opened netlink's protocol {protocol}")),
            Err(stop) => stopped = stop,
        }
    }
    Err(stopped)
}

fn mptcp() -> AttemptResult {
    socket(libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP)
}

fn tcp_protocols() -> AttemptResult {
    let fd = kernel!(SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0)?;
    let name = b"none";
    let put = kernel!(
        SYS_setsockopt,
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_ULP,
        name.as_ptr(),
        name.len()
    );
    judge_senseless_call("a protocol over TCP", put, &[Errno::ENOENT])
}

fn udp_lite() -> AttemptResult {
    socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE)
}

fn vsock() -> AttemptResult {
    socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)
}

fn kernel_crypto() -> AttemptResult {
    socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)
}

fn rare_protocols() -> AttemptResult {
    // AX.25, IPX, AppleTalk, X.25, DECnet, key management, LLC, CAN, TIPC, Bluetooth, RxRPC, Phonet, KCM, SMC, XDP.
    let families = [3, 4, 5, 9, 12, 15, 26, 29, 30, 31, 33, 35, 41, 43, 44];
    let kinds = [
        libc::SOCK_STREAM,
        libc::SOCK_DGRAM,
        libc::SOCK_RAW,
        libc::SOCK_SEQPACKET,
    ];
    let mut stopped = StopReason::Denied("none".into());
    for family in families {
        for kind in kinds {
            match kernel!(SYS_socket, family, kind, 0) {
                Ok(_) => return Ok(format!("opened a socket of family {family}")),
                Err(stop) => stopped = stop,
            }
        }
    }
    Err(stopped)
}
