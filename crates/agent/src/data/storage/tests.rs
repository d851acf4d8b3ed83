use super::*;
use std::os::unix::fs::PermissionsExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Less than the 10 s after which an unknown connection is closed in any case.
const SOON: Duration = Duration::from_secs(4);

fn file(folder: &Path, mode: u32) -> std::path::PathBuf {
    let text = "[[store]]\nendpoint = \"http://127.0.0.1:9\"\ncredentials = \"keys\"\n[[store.grant]]\nreach = \"s3://people/{tenant}:rw\"\n";
    let keys = "[default]\naws_access_key_id = A\naws_secret_access_key = B\n";
    for (name, text) in [("storage.toml", text), ("keys", keys)] {
        let path = folder.join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
    }
    folder.join("storage.toml")
}

fn asker(kind: Kind, is_own: bool, network: bool) -> StorageRequester<'static> {
    StorageRequester {
        tenant: "ann",
        is_own,
        kind,
        network,
        node: "n1",
    }
}

#[tokio::test]
async fn storage_is_for_functions_that_cannot_read_the_site_s_keys_or_may_have_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let storage = Storage::open(Some(&file(folder.path(), 0o600))).await.expect("good");
    let asked = ["s3://people/ann/run:rw".to_owned()];
    for (kind, is_own, network, inside) in [
        (Kind::Namespace, false, false, Some(true)),
        (Kind::Namespace, false, true, Some(false)),
        (Kind::Namespace, true, false, Some(true)),
        (Kind::Process, true, true, Some(false)),
        (Kind::Process, false, true, None),
        (Kind::Container, false, false, None),
        (Kind::Container, true, true, None),
    ] {
        let of = storage.of_lease(&asked, asker(kind, is_own, network));
        let found = of
            .as_ref()
            .ok()
            .map(|of| of.as_ref().expect("asked for").access().inside);
        assert_eq!(found, inside, "{kind} of its own user: {is_own}: {of:?}");
        if let Err(refusal) = of {
            let said = refusal.to_string();
            assert!(said.contains("kind namespace") && said.contains("on n1"), "{said}");
        }
    }
    let none = storage.of_lease(&[], asker(Kind::Container, false, false));
    assert!(matches!(none, Ok(None)), "{none:?}");
    let many = vec![asked[0].clone(); STORAGE_MAX + 1];
    let refused = storage.of_lease(&many, asker(Kind::Namespace, false, false));
    assert!(matches!(refused, Err(Rejection::TooMany { .. })), "{refused:?}");
}

#[tokio::test]
async fn keys_are_known_as_long_as_their_lease_is_not_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let storage = Storage::open(Some(&file(folder.path(), 0o600))).await.expect("good");
    let lease = || {
        let of = storage.of_lease(&["s3://people/ann".to_owned()], asker(Kind::Namespace, false, false));
        of.expect("granted").expect("asked for")
    };
    let (one, other) = (lease(), lease());
    assert!(one.keys != other.keys && one.keys.secret.len() == 64);
    let open = storage.open.as_ref().expect("there is a file");
    assert!(open.lease(&one.keys.id).is_some() && open.lease("HL").is_none());
    one.end();
    assert!(one.is_over() && open.lease(&one.keys.id).is_none());
    assert!(open.lease(&other.keys.id).is_some(), "it is another's end");
    drop(other);
    assert!(open.leases().is_empty(), "one that was not granted stays");
    let shown = format!("{one:?} {:?}", one.access());
    assert!(!shown.contains(&one.keys.secret), "{shown}");
}

#[tokio::test]
async fn an_agent_does_not_start_with_secrets_that_others_may_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = Storage::open(Some(&file(folder.path(), 0o644))).await;
    let said = refused.err().expect("others may read them").to_string();
    assert!(
        said.contains("--sandbox-storage") && said.contains("chmod 600"),
        "{said}"
    );
    let missing = Storage::open(Some(&folder.path().join("missing"))).await;
    assert!(missing.err().expect("it is not there").to_string().contains("missing"));
}

/// Reads until the other side closes; returns `None` if it does not close in time.
async fn read_to_end(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    // If an error closes the connection, the bytes before the error are returned.
    let _ = timeout(SOON, stream.read_to_end(&mut read)).await.ok()?;
    Some(String::from_utf8_lossy(&read).into_owned())
}

#[tokio::test]
async fn connections_that_prove_no_lease_keep_no_other_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let storage = Storage::open(Some(&file(folder.path(), 0o600))).await.expect("good");
    let open = Arc::clone(storage.open.as_ref().expect("there is a file"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let limits = HostLimits {
        unknown: 2,
        silence: Duration::ZERO,
        ..HostLimits::default()
    };
    let serving = tokio::spawn(connections::serve_host(open, listener, limits));
    let connect = async || TcpStream::connect(address).await.expect("it listens");
    let mut silent = connect().await;
    let mut half = connect().await;
    half.write_all(b"GET /people HTTP/1.1\r\n").await.expect("sent");
    let mut client = connect().await;
    let request = "GET /people/ann HTTP/1.1\r\nhost: x\r\n\r\n";
    client.write_all(request.as_bytes()).await.expect("sent");
    let answer = read_to_end(&mut client).await.expect("an answer in time");
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    let mut later = connect().await;
    later.write_all(request.as_bytes()).await.expect("sent");
    assert!(
        read_to_end(&mut later)
            .await
            .expect("in time")
            .starts_with("HTTP/1.1 4")
    );
    assert_eq!(
        read_to_end(&mut silent).await.as_deref(),
        Some(""),
        "it keeps its place"
    );
    serving.abort();
}
