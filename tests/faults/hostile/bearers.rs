//! Strangers at an agent's port with tokens that no agent issued.

use super::{ANSWERED, number};
use hotlease_net::Address;
use hotlease_tests::site::Authority;
use hotlease_wire::ids::{AgentId, BootId, Epoch, LeaseId};
use hotlease_wire::limits::PROTOCOL_VERSION;
use hotlease_wire::token::{CLAIMS_VERSION, Claims, Rights, TokenKey};
use hotlease_wire::tunnel::{Ticket, TunnelFrame};
use rand::RngExt;
use rand::rngs::StdRng;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// First bytes that a peer without a certificate may send: tokens that no agent issued, tickets that no agent knows,
/// messages that only other peers may send; whole, cut, or with wrong bytes.
fn first_bytes(random: &mut StdRng) -> Vec<u8> {
    let claims = Claims {
        version: CLAIMS_VERSION,
        lease: LeaseId(random.random()),
        tenant: "alice".into(),
        agent: AgentId(random.random()),
        boot: BootId(random.random()),
        epoch: Epoch(random.random()),
        attach_until_ms: u64::MAX,
        rights: Rights::HOLDER,
        delegation: 0,
    };
    let frame = match random.random_range(0..6) {
        0..3 => TunnelFrame::Bearer {
            version: PROTOCOL_VERSION,
            token: TokenKey::new(random.random()).mint(&claims),
            silence_ms: number(random),
        },
        3 => TunnelFrame::Join {
            ticket: Ticket(random.random()),
            silence_ms: number(random),
        },
        4 => TunnelFrame::Session {
            version: PROTOCOL_VERSION,
            silence_ms: 1000,
        },
        _ => TunnelFrame::Message {
            bytes: vec![7; random.random_range(1..5000)],
            attachments: Vec::new(),
        },
    };
    let mut bytes = frame.encode();
    match random.random_range(0..4) {
        0 => bytes.truncate(random.random_range(0..bytes.len())),
        1 => {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
        _ => {}
    }
    bytes
}

/// Sends such bytes; returns how many connections were answered or closed in time.
pub fn bearers(address: &Address, authority: &Authority, random: &mut StdRng, requests: u32) -> u32 {
    let ca = CertificateDer::from_pem_file(authority.directory().join("ca.pem")).expect("an authority");
    let mut roots = RootCertStore::empty();
    roots.add(ca).expect("an authority");
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"hotlease-session/1".to_vec()];
    let config = Arc::new(config);
    let port: std::net::SocketAddr = address.authority().parse().expect("a numeric address");
    let mut answered = 0;
    for _ in 0..requests {
        let bytes = first_bytes(random);
        let asked = || -> std::io::Result<usize> {
            let tcp = TcpStream::connect(port)?;
            tcp.set_nodelay(true)?;
            tcp.set_read_timeout(Some(ANSWERED))?;
            let connection = ClientConnection::new(Arc::clone(&config), port.ip().into());
            let mut stream = StreamOwned::new(connection.expect("a connection"), tcp);
            stream.write_all(&bytes)?;
            stream.flush()?;
            // The agent would wait in vain for the rest of a message that was cut, so the end is announced.
            stream.conn.send_close_notify();
            stream.flush()?;
            stream.read(&mut [0; 4096])
        };
        answered += u32::from(asked().is_ok());
    }
    answered
}
