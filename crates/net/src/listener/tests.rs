//! Clients that connect while other connections of their address fill the waiting room.

use super::*;
use crate::CertificateRole;
use crate::authority::{self, IdentityRequest};
use rustls::pki_types::ServerName;
use std::io::Write;
use std::net::TcpStream as SilentStream;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

/// Time that even a busy machine does not need.
const LONG: Duration = Duration::from_secs(60);

struct Site {
    dir: TempDir,
    address: SocketAddr,
    admitted: mpsc::Receiver<PeerConnection>,
    accepting: JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Site {
    async fn new(limits: Limits) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        authority::init(&dir.path().join("authority")).expect("an authority");
        let request = IdentityRequest {
            hosts: vec!["127.0.0.1".into()],
            ..IdentityRequest::new(CertificateRole::Manager)
        };
        let identity = Arc::new(issue(&dir, "manager", &request));
        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = TlsListener::bind(any, identity, limits).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, admitted) = mpsc::channel(16);
        Self {
            dir,
            address,
            admitted,
            accepting: tokio::spawn(listener.accept_into(sender)),
        }
    }

    fn client(&self, tenant: &str) -> Client {
        let request = IdentityRequest {
            tenant: Some(tenant.into()),
            ..IdentityRequest::new(CertificateRole::Client)
        };
        Client {
            address: self.address,
            identity: Arc::new(issue(&self.dir, tenant, &request)),
        }
    }
}

fn issue(dir: &TempDir, name: &str, request: &IdentityRequest) -> Identity {
    let out = dir.path().join(name);
    authority::issue(&dir.path().join("authority"), request, &out).expect("an identity");
    Identity::load(&out).expect("an identity")
}

#[derive(Clone)]
struct Client {
    address: SocketAddr,
    identity: Arc<Identity>,
}

impl Client {
    async fn connect(&self) -> io::Result<TcpStream> {
        TcpStream::connect(self.address).await
    }

    async fn shake_hands(&self, tcp: TcpStream) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let config = self.identity.credentials().client(ConnectionProtocol::Grpc);
        let name = ServerName::try_from("127.0.0.1").expect("an address");
        TlsConnector::from(config).connect(name, tcp).await
    }
}

#[tokio::test]
async fn clients_get_in_while_others_of_their_address_say_nothing_or_stop_in_their_handshake() {
    let limits = Limits {
        waiting: 8,
        handshakes: 4,
        handshakes_per_address: 4,
        handshake: LONG,
        silence: Duration::from_millis(20),
        standstill: Duration::from_millis(20),
        ..Limits::default()
    };
    for sent in [&[][..], &[22]] {
        let mut site = Site::new(limits).await;
        let client = site.client("honest");
        let mut crowd = Vec::new();
        for _ in 0..30 {
            let mut stream = SilentStream::connect(site.address).expect("it listens");
            // The stream may have been closed already.
            let _ = stream.write_all(sent);
            crowd.push(stream);
        }
        let served = async {
            loop {
                let tcp = client.connect().await.expect("it listens");
                // The listener may close this connection for another, as long as no other connection is older.
                let Ok(mut stream) = client.shake_hands(tcp).await else {
                    sleep(Duration::from_millis(10)).await;
                    continue;
                };
                tokio::select! {
                    admitted = site.admitted.recv() => break admitted.expect("it accepts").peer.name,
                    // On a busy machine the client's own handshake may be at a standstill.
                    _ = stream.read_u8() => {}
                }
            }
        };
        let served = timeout(LONG / 4, served).await;
        assert_eq!(served.expect("it was kept out"), "honest", "the others sent {sent:?}");
    }
}

#[tokio::test]
async fn a_slow_client_keeps_its_place_among_many_honest_ones() {
    const ROUNDS: usize = 5;
    const CLIENTS: usize = 100;
    // The burst is larger than the room, and no client of it is over a limit.
    let limits = Limits {
        waiting: 32,
        handshakes: 32,
        handshakes_per_address: 32,
        handshake: LONG,
        silence: LONG,
        standstill: LONG,
        ..Limits::default()
    };
    let mut site = Site::new(limits).await;
    let (slow, honest) = (site.client("slow"), site.client("honest"));
    let silent = slow.connect().await.expect("it listens");
    for _ in 0..ROUNDS {
        let mut burst = JoinSet::new();
        for _ in 0..CLIENTS {
            let client = honest.clone();
            burst.spawn(async move {
                let tcp = client.connect().await.expect("it listens");
                client.shake_hands(tcp).await.expect("it is let in")
            });
        }
        for _ in 0..CLIENTS {
            let admitted = timeout(LONG, site.admitted.recv()).await.expect("all are served");
            assert_eq!(admitted.expect("it accepts").peer.name, "honest");
        }
        burst.join_all().await;
    }
    let _stream = slow.shake_hands(silent).await.expect("it has its place still");
    let admitted = timeout(LONG, site.admitted.recv()).await.expect("it is served");
    assert_eq!(admitted.expect("it accepts").peer.name, "slow");
}
