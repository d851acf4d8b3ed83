//! Object storage of leases: a real store, a real agent, and functions that speak the protocol by hand, so that they
//! can break it. Where there is no store, or the machine makes no sandboxes, the tests print so, and pass.

mod scene;

use crate::leases::until_all_cores_can_be_leased;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hotlease_s3::SigningKeys;
use hotlease_tests::lease::LONG;
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::session::RawSession;
use hotlease_tests::versitygw::{ACCESS, SECRET};
use hotlease_tests::wait::until_true;
use hotlease_wire::grpc::{self, AcquireRequest};
use scene::{Request, Scene, connected, own, own_place, read_answer, request, until_cut};
use std::fs;
use std::io::Write;
use std::time::Duration;

#[test]
fn functions_read_and_write_storage_where_their_lease_says_and_nowhere_else() {
    let Some(scene) = Scene::start() else { return };
    let data = scene.s3.bucket("data");
    for (folder, name) in [("shared", "read me"), ("uid:1", "theirs")] {
        fs::create_dir_all(data.join(folder)).expect("made");
        fs::write(data.join(folder).join(name), "of others").expect("written");
    }
    fs::write(scene.s3.bucket("other").join("a"), "of others").expect("written");
    let Some(lease) = scene.lease(&[own_place(), "s3://data/shared".into()]) else {
        return;
    };
    let own = own().replace(':', "%3A");

    lease.put(&format!("/data/{own}/run%207"), b"result").is(200, "");
    assert_eq!(
        fs::read(data.join(scene::own()).join("run 7")).expect("written"),
        b"result"
    );
    lease.get(&format!("/data/{own}/run%207")).is(200, "\r\n\r\nresult");
    lease
        .get(&format!("/data?list-type=2&prefix={own}%2F"))
        .is(200, "run 7");
    lease.get("/data/shared/read%20me").is(200, "of others");
    lease.ask(&request("HEAD", &format!("/data/{own}/run%207"))).is(200, "");
    lease.get(&format!("/data/{own}/missing")).is(404, "NoSuchKey");
    let copied = format!("/data/{own}/copy");
    let copy = Request {
        headers: &[("x-amz-copy-source", "data/shared/read%20me")],
        ..request("PUT", &copied)
    };
    lease.ask(&copy).is(200, "CopyObjectResult");
    let names = format!(
        "<Delete><Object><Key>{0}/run 7</Key></Object><Object><Key>{0}/copy</Key></Object></Delete>",
        scene::own()
    );
    // Stores require a checksum of the body in one more header.
    let sum = STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, names.as_bytes()));
    let removal = Request {
        headers: &[("x-amz-checksum-sha256", &sum)],
        body: names.as_bytes(),
        ..request("POST", "/data?delete=")
    };
    lease.ask(&removal).is(200, "DeleteResult");
    lease.get(&format!("/data/{own}/run%207")).is(404, "NoSuchKey");

    // Prefixes that may only be read, other tenants' prefixes, another bucket, and detours.
    let written = lease.put("/data/shared/mine", b"x");
    written.is(403, "s3://data/shared/mine to write");
    assert!(
        written.1.contains(&own_place()) && written.1.contains("storage="),
        "{written:?}"
    );
    lease
        .ask(&request("DELETE", "/data/shared/read%20me"))
        .is(403, "AccessDenied");
    for (target, status, code) in [
        ("/data/uid%3A1/theirs", 403, "AccessDenied"),
        ("/other/a", 403, "AccessDenied"),
        ("/data/shared/../uid:1/theirs", 400, "InvalidURI"),
        ("/data/shared/%2e%2e/uid%3A1/theirs", 400, "InvalidURI"),
        ("/data/shared%2F..%2Fuid%3A1%2Ftheirs", 400, "InvalidURI"),
        ("/data?list-type=2", 403, "AccessDenied"),
        ("/data?list-type=2&prefix=uid%3A1%2F", 403, "AccessDenied"),
        ("/data?list-type=2&prefix=share", 403, "AccessDenied"),
        ("/", 403, "AccessDenied"),
        ("/data/shared/read%20me?acl=", 501, "NotImplemented"),
        ("/data?policy=", 501, "NotImplemented"),
    ] {
        lease.get(target).is(status, code);
    }
    let stolen = Request {
        headers: &[("x-amz-copy-source", "data/uid%3A1/theirs")],
        ..request("PUT", &copied)
    };
    lease.ask(&stolen).is(403, "s3://data/uid:1/theirs to read");
    let right = format!("/data/{own}/a");
    let open_to_all = Request {
        headers: &[("x-amz-acl", "public-read")],
        body: b"x",
        ..request("PUT", &right)
    };
    lease.ask(&open_to_all).is(501, "x-amz-acl");
    let names = "<Delete><Object><Key>shared/read me</Key></Object></Delete>";
    lease
        .ask(&Request {
            body: names.as_bytes(),
            ..request("POST", "/data?delete=")
        })
        .is(403, "AccessDenied");
    assert!(data.join("shared/read me").exists() && !data.join("shared/mine").exists());
    assert_eq!(scene.s3.objects("other").len(), 1);

    // Requests with wrong keys, and a request whose body is not the signed body.
    let wrong = SigningKeys {
        secret: "guessed".into(),
        ..lease.keys.clone()
    };
    lease
        .send(&request("GET", &right).signed(&wrong, lease.port))
        .is(403, "SignatureDoesNotMatch");
    let site = SigningKeys {
        id: ACCESS.into(),
        secret: SECRET.into(),
        token: None,
    };
    lease
        .send(&request("GET", &right).signed(&site, lease.port))
        .is(403, "InvalidAccessKeyId");
    let other = Request {
        body: b"signed",
        ..request("PUT", &right)
    };
    let mut changed = other.signed(&lease.keys, lease.port);
    let end = changed.len() - 6;
    changed[end..].copy_from_slice(b"forged");
    let answer = lease.send(&changed);
    assert!(answer.0 >= 400, "the body is not the one that was signed: {answer:?}");
    lease.get(&right).is(404, "NoSuchKey");
    lease
        .send(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .is(403, "not signed");

    // The lease's keys are in the worker's environment, and the site's keys are nowhere in the sandbox.
    assert!(
        lease.search(&lease.keys.secret).ends_with("/environ"),
        "the search finds what is there"
    );
    assert_eq!(lease.search(SECRET), "", "the site's secret is in the sandbox");
    let log = scene.platform.log();
    for secret in [SECRET, &lease.keys.secret] {
        assert!(!log.contains(secret), "a secret is in the log:\n{log}");
    }
    lease.invoker.deallocate().expect("it ends");
    until_all_cores_can_be_leased(&scene.platform, LIMIT);
}

#[test]
fn a_lease_s_keys_are_its_own_and_end_with_it() {
    let Some(scene) = Scene::start() else { return };
    let place = [own_place()];
    let Some(inside) = scene.lease(&place) else { return };
    let target = format!("/data/{}/a", own().replace(':', "%3A"));
    inside.put(&target, b"x").is(200, "");
    let manager = scene.platform.manager();
    // (how the lease ends, its time to live)
    for (end, ttl) in [
        ("released", LONG),
        ("revoked", LONG),
        ("expired", Duration::from_secs(6)),
    ] {
        // The lease is on the host's network, where this test reaches its storage port, too.
        let grant = scene.acquire("namespace", true, &place, ttl).expect("granted");
        assert_eq!(grant.reach.clone().expect("stated").storage, place);
        // A lease to which no client attaches ends early.
        let session = (end != "expired").then(|| RawSession::attached(&grant));
        let (keys, port) = scene.keys_of(&grant);
        inside
            .send(&request("GET", &target).signed(&keys, inside.port))
            .is(403, "InvalidAccessKeyId");
        let elsewhere = SigningKeys { ..inside.keys.clone() };
        let mut theirs = connected(port);
        let get = Request {
            keeps: true,
            ..request("GET", &target)
        };
        let mut kept = connected(port);
        kept.write_all(&get.signed(&keys, port)).expect("sent");
        let first = read_answer(&mut kept);
        first.is(200, "\r\n\r\nx");
        // A connection belongs to one lease, even if another lease's keys are good.
        kept.write_all(&get.signed(&elsewhere, port)).expect("sent");
        read_answer(&mut kept).is(403, "InvalidAccessKeyId");
        let mut kept = connected(port);
        kept.write_all(&get.signed(&keys, port)).expect("sent");
        read_answer(&mut kept).is(200, "\r\n\r\nx");
        // Another connection is in the middle of a write.
        let unfinished = format!("{target}-{end}");
        let half = Request {
            body: &[b'y'; 1 << 16],
            ..request("PUT", &unfinished)
        };
        let mut writing = connected(port);
        let bytes = half.signed(&keys, port);
        writing.write_all(&bytes[..bytes.len() / 2]).expect("sent");

        match end {
            "released" => drop(manager.release(&grant.lease).expect("it ends")),
            "revoked" => drop(manager.revoke(&grant.lease).expect("it ends")),
            _ => {}
        }
        assert_eq!(until_cut(&mut kept), 0, "{end}: said something more");
        until_cut(&mut writing);
        until_true("the lease is over", LIMIT, || {
            manager
                .lease_info(&grant.lease)
                .is_none_or(|lease| lease.state == "ended")
        });
        theirs
            .write_all(&request("GET", &target).signed(&keys, port))
            .expect("sent");
        read_answer(&mut theirs).is(403, "InvalidAccessKeyId");
        drop(session);
        // The store keeps files of its own beside the prefix.
        let objects = fs::read_dir(scene.s3.bucket("data").join(own())).expect("a folder");
        assert_eq!(objects.count(), 1, "{end}: half an object was written");
    }
    inside.get(&target).is(200, "\r\n\r\nx");
    inside.invoker.deallocate().expect("it ends");
    until_all_cores_can_be_leased(&scene.platform, LIMIT);
}

#[test]
fn storage_that_is_not_granted_is_refused_with_what_is() {
    let Some(scene) = Scene::start() else { return };
    let refused = |sandbox: &str, place: &str| {
        let refusal = scene.acquire(sandbox, false, &[place.to_owned()], LONG);
        refusal.expect_err("not granted").to_string()
    };
    let own_user = own();
    for (place, words) in [
        ("s3://other", vec!["s3://other:ro", "--sandbox-storage", &own_user]),
        ("s3://data", vec!["s3://data:ro", &own_user]),
        (
            "s3://data/shared:rw",
            vec!["s3://data/shared:rw", "s3://data/shared:ro"],
        ),
        ("s3://data/../other", vec!["s3://"]),
        ("data", vec!["s3://BUCKET"]),
    ] {
        let said = refused("process", place);
        for word in words {
            assert!(said.contains(word), "{place}: {said} does not say {word}");
        }
    }
    // The agent's own user could read the site's keys; a function of kind process runs as that user.
    let grant = scene
        .acquire("process", false, &[own_place()], LONG)
        .expect("its own user asks");
    let session = RawSession::attached(&grant);
    let (keys, port) = scene.keys_of(&grant);
    let target = format!("/data/{}/a", own().replace(':', "%3A"));
    let put = Request {
        body: b"x",
        ..request("PUT", &target)
    };
    let mut stream = connected(port);
    stream.write_all(&put.signed(&keys, port)).expect("sent");
    read_answer(&mut stream).is(200, "");
    session.release();
    until_all_cores_can_be_leased(&scene.platform, LIMIT);
    let container = scene.acquire("container", false, &[own_place()], LONG);
    let said = container.expect_err("no way out of one").to_string();
    assert!(
        said.contains("kind namespace") || said.contains("no sandbox of kind"),
        "{said}"
    );
    drop(scene);

    let platform = Platform::start();
    let refusal = platform.manager().acquire(AcquireRequest {
        workers: 1,
        slots_per_worker: 1,
        reach: Some(grpc::Reach {
            storage: vec![own_place()],
            ..grpc::Reach::default()
        }),
        ..AcquireRequest::default()
    });
    let said = refusal.expect_err("there is no file").to_string();
    assert!(
        said.contains("no object storage") && said.contains("--sandbox-storage FILE"),
        "{said}"
    );
}
