//! The REST interface: its answers, who gets them, and the requests that it survives.

use hotlease_tests::garbage::random;
use hotlease_tests::http::{Answer, answer, ask, connect, get};
use hotlease_tests::lease::LONG;
use hotlease_tests::platform::{LIMIT, Platform};
use hotlease_tests::session::RawSession;
use hotlease_tests::wait::until_true;
use hotlease_wire::grpc::AcquireRequest;
use hotlease_wire::grpc::manager_client::ManagerClient;
use rand::RngExt;
use rand::rngs::StdRng;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tonic::transport::Endpoint;

/// Number of hostile requests.
const HOSTILE: usize = 10_000;
/// Growth that is allowed to the manager meanwhile: allocator caches and buffers of open connections.
const GROWTH_BYTES_MAX: u64 = 64 << 20;

fn is_problem(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), "application/problem+json", "{answer:?}");
    let problem = answer.json();
    assert_eq!(problem["status"], status, "{answer:?}");
    for member in ["type", "title", "detail", "trace"] {
        let text = problem[member].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "the problem has no {member}: {answer:?}");
    }
}

#[test]
fn routes_answer_what_the_command_line_shows() {
    let platform = Platform::start();
    let directory = platform.directory();
    let alive = get(directory, "/healthz");
    assert_eq!((alive.status, alive.body.as_str()), (200, r#"{"status":"alive"}"#));
    let ready = get(directory, "/readyz");
    assert_eq!((ready.status, &ready.json()["ready"]), (200, &true.into()), "{ready:?}");
    let info = get(directory, "/v1/info").json();
    assert_eq!((&info["agents"], &info["leases"]), (&1.into(), &0.into()));

    let agents = get(directory, "/v1/agents").json();
    let id = agents["agents"][0]["id"].as_str().expect("an agent").to_owned();
    let agent = get(directory, &format!("/v1/agents/{id}")).json();
    assert_eq!(agent["state"], "serving", "{agent}");
    assert_eq!(
        agent["cores"].as_array().map(Vec::len),
        Some(platform.cores().len()),
        "{agent}"
    );
    is_problem(&get(directory, "/v1/agents/0000000000000000"), 404);

    let grant = platform.manager().lease(1, LONG).expect("a lease");
    let _session = RawSession::attached(&grant);
    let lease = format!("/v1/leases/{}", grant.lease);
    let shown = get(directory, &lease).json();
    assert_eq!(
        (&shown["state"], &shown["agent"]),
        (&"active".into(), &id.as_str().into()),
        "{shown}"
    );
    let listed = get(directory, "/v1/leases?state=active&limit=5").json();
    assert_eq!(listed["leases"][0]["id"], grant.lease, "{listed}");
    assert_eq!(
        get(directory, "/v1/leases?state=ended").json()["leases"]
            .as_array()
            .map(Vec::len),
        Some(0)
    );

    let ended = ask(directory, "DELETE", &lease, "", "");
    assert_eq!(
        (ended.status, &ended.json()["lease"]),
        (200, &grant.lease.as_str().into()),
        "{ended:?}"
    );
    assert_eq!(get(directory, &lease).json()["state"], "ended");
    let again = ask(directory, "DELETE", &lease, "", "");
    assert!([404, 410].contains(&again.status), "a lease was ended twice: {again:?}");
    is_problem(&again, again.status);

    let bill = get(directory, "/v1/usage?by=lease&since=2020-01-01T00:00:00Z").json();
    assert_eq!(bill["rows"][0]["lease"], grant.lease, "{bill}");
    let csv = ask(directory, "GET", "/v1/usage?by=lease", "Accept: text/csv\r\n", "");
    assert!(csv.header("content-type").starts_with("text/csv"), "{csv:?}");
    assert!(
        csv.body.starts_with("tenant,job,lease,") && csv.body.contains(&grant.lease),
        "{csv:?}"
    );

    let document = get(directory, "/v1/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let metrics = get(directory, "/metrics");
    assert!(metrics.body.ends_with("# EOF\n"), "{metrics:?}");
    for line in [
        "hotlease_grants_total 1",
        "hotlease_leases_active 0",
        "hotlease_agents{state=\"serving\"} 1",
        "hotlease_requests_total{interface=\"grpc\",route=\"Acquire\",status=\"Ok\"} 1",
        "hotlease_requests_total{interface=\"rest\",route=\"/v1/leases/{lease}\",status=\"200\"} 3",
    ] {
        assert!(
            metrics.body.contains(&format!("{line}\n")),
            "no {line} in:\n{}",
            metrics.body
        );
    }
    assert!(!metrics.body.contains("uid:"), "a tenant's name in:\n{}", metrics.body);
}

#[test]
fn a_node_is_drained_removed_and_offered_again() {
    let platform = Platform::start();
    let directory = platform.directory();
    let id = get(directory, "/v1/nodes").json()["nodes"][0]["agent"]["id"].clone();
    let node = format!("/v1/nodes/{}", id.as_str().expect("a node"));
    let json = "Content-Type: application/json\r\n";
    let order = |method: &str, path: &str, body: &str| {
        let answer = ask(directory, method, &format!("{node}{path}"), json, body);
        assert_eq!(
            (answer.status, &answer.json()["done"]),
            (200, &true.into()),
            "{answer:?}"
        );
        get(directory, &node).json()
    };
    let grant = platform.manager().lease(1, LONG).expect("a lease");
    let shown = order("POST", "/drain", "{\"within_ms\": 600000}");
    assert_eq!(
        (&shown["drained"], &shown["leases"]),
        (&true.into(), &1.into()),
        "{shown}"
    );
    platform
        .manager()
        .lease(1, LONG)
        .expect_err("a drained node grants nothing");
    order("DELETE", "", "");
    until_true("nothing of the node is in use", Duration::from_secs(10), || {
        get(directory, &node).json()["leases"] == 0
    });
    let lease = format!("/v1/leases/{}", grant.lease);
    until_true("its lease has ended", Duration::from_secs(10), || {
        get(directory, &lease).json()["state"] == "ended"
    });
    let shown = order("PUT", "/offer", "{\"cores\": \"1\"}");
    assert_eq!(shown["agent"]["cores"].as_array().map(Vec::len), Some(1), "{shown}");
    let shown = order("POST", "/resume", "");
    assert_eq!(shown["drained"], false, "{shown}");
    for (path, body, status) in [
        ("/drain", "", 400),
        ("/drain", "{\"within_ms\": -1}", 400),
        ("/drain", "{\"within_ms\": 1, \"force\": true}", 400),
        ("/offer", "{\"cores\": \"some\"}", 400),
    ] {
        let method = if path == "/drain" { "POST" } else { "PUT" };
        is_problem(&ask(directory, method, &format!("{node}{path}"), json, body), status);
    }
    let untold = ask(directory, "POST", &format!("{node}/drain"), "", "{\"within_ms\": 1}");
    is_problem(&untold, 415);
    let long = format!("{{\"cores\": [{}0]}}", "1,".repeat(40_000));
    is_problem(&ask(directory, "PUT", &format!("{node}/offer"), json, &long), 413);
}

#[test]
fn a_request_that_cannot_be_answered_is_a_problem_with_its_reason() {
    let platform = Platform::start();
    let directory = platform.directory();
    let json = "Content-Type: application/json\r\n";
    for (method, path, headers, status) in [
        ("GET", "/", "", 404),
        ("GET", "/v1", "", 404),
        ("GET", "/v1/leases/", "", 404),
        ("GET", "/v1/leases/..%2f..%2fetc%2fpasswd", "", 404),
        ("GET", "/v1/leases/%ff%fe", "", 400),
        ("GET", "/../../etc/passwd", "", 404),
        ("GET", "/v1/leases?tennant=x", "", 400),
        ("GET", "/v1/leases?limit=0", "", 400),
        ("GET", "/v1/leases?limit=1&limit=2", "", 400),
        ("GET", "/v1/usage?since=yesterday", "", 400),
        ("GET", "/v1/usage", "Accept: image/png\r\n", 406),
        ("POST", "/v1/leases", json, 405),
        ("TRACE", "/v1/info", "", 405),
        ("BREW", "/v1/info", "", 405),
        ("GET", "/v1/info", "Authorization: Bearer nonsense\r\n", 401),
        ("GET", "/v1/info", "Authorization: Basic cm9vdDpyb290\r\n", 401),
        ("GET", "/v1/info", "Authorization: a\r\nAuthorization: b\r\n", 401),
        ("GET", "/v1/info", "Host: other\r\n", 400),
        (
            "DELETE",
            "/v1/leases/0000000000000000",
            "Origin: https://evil.example\r\n",
            403,
        ),
        ("DELETE", "/v1/leases/0000000000000000", "", 404),
    ] {
        let answer = ask(directory, method, path, headers, "");
        assert_eq!(answer.status, status, "{method} {path} {headers}: {answer:?}");
        is_problem(&answer, status);
        match status {
            401 => assert!(answer.header("www-authenticate").starts_with("Bearer"), "{answer:?}"),
            405 => assert!(!answer.header("allow").is_empty(), "{answer:?}"),
            _ => {}
        }
    }
    let head = ask(directory, "HEAD", "/v1/info", "", "");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[test]
fn a_trace_is_found_in_the_logs_of_manager_and_agent() {
    let platform = Platform::start();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let header = format!("00-{trace}-00f067aa0ba902b7-01");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let socket = format!("unix:{}", platform.directory().join("manager.sock").display());
    let grant = runtime.block_on(async {
        let channel = Endpoint::from_shared(socket).expect("an address").connect().await;
        let mut client = ManagerClient::new(channel.expect("the manager"));
        let mut request = tonic::Request::new(AcquireRequest {
            workers: 1,
            slots_per_worker: 1,
            ..AcquireRequest::default()
        });
        request
            .metadata_mut()
            .insert("traceparent", header.parse().expect("text"));
        client.acquire(request).await.expect("a lease").into_inner()
    });
    let traced = |words: &str| {
        until_true(&format!("a line with {words:?} and the trace"), LIMIT, || {
            let log = platform.log();
            let mut lines = log.lines().filter(|line| line.contains(words));
            lines.any(|line| line.contains(trace))
        });
    };
    traced("lease granted");
    let path = format!("/v1/leases/{}", grant.lease);
    let ended = ask(
        platform.directory(),
        "DELETE",
        &path,
        &format!("Traceparent: {header}\r\n"),
        "",
    );
    assert_eq!(ended.header("x-trace-id"), trace, "{ended:?}");
    traced("ended a lease");
}

/// A hostile request, as no client sends it.
fn hostile(random: &mut StdRng) -> Vec<u8> {
    let host = "Host: x\r\n";
    let text = match random.random_range(0..12) {
        0 => format!("GET /v1/leases HTTP/1.1\r\n{host}X: {}\r\n\r\n", "a".repeat(100_000)),
        1 => {
            let many: String = (0..500).map(|number| format!("X-{number}: 1\r\n")).collect();
            format!("GET /v1/leases HTTP/1.1\r\n{host}{many}\r\n")
        }
        2 => format!("GET /{} HTTP/1.1\r\n{host}\r\n", "../".repeat(2_000)),
        3 => format!("GET /v1/leases/{} HTTP/1.1\r\n{host}\r\n", "%00".repeat(20)),
        4 => "GET /v1/info HTTP/1.1\r\n\r\n".to_owned(),
        5 => format!("DELETE /v1/leases/1 HTTP/1.1\r\n{host}Content-Length: 99999999999999999999\r\n\r\n"),
        6 => format!(
            "DELETE /v1/leases/1 HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nfffffffffffffffff\r\n"
        ),
        7 => format!("GET /v1/info HTTP/1.1\r\n{host}\r\n").repeat(50),
        8 => format!(
            "PUT /v1/tenants/x HTTP/1.1\r\n{host}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{{\"a\":[[[["
        ),
        9 => "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_owned(),
        10 => format!("CONNECT evil.example:443 HTTP/1.1\r\n{host}\r\n"),
        _ => {
            let mut noise = vec![0; random.random_range(1..2000)];
            random.fill(&mut noise[..]);
            return noise;
        }
    };
    text.into_bytes()
}

fn serves(directory: &Path) {
    let begun = Instant::now();
    assert_eq!(get(directory, "/v1/info").status, 200);
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "an honest request took {:?}",
        begun.elapsed()
    );
}

#[test]
fn ten_thousand_hostile_requests_leave_it_serving_and_small() {
    let platform = Platform::start_alone();
    let directory = platform.directory();
    let mut random = random("hostile requests");
    let process = platform.process();
    serves(directory);
    let (before, descriptors) = (process.rss_bytes(), process.descriptors());
    // Requests that never end stay open all the while; they take all but a few of the places.
    let mut slow: Vec<UnixStream> = (0..200).map(|_| connect(directory)).collect();
    for stream in &mut slow {
        stream
            .write_all(b"GET /v1/info HTTP/1.1\r\nHost: x\r\nX: ")
            .expect("a place");
    }
    for number in 0..HOSTILE {
        let mut stream = connect(directory);
        // The connection may be closed before all is written, with an answer or without.
        let _ = stream.write_all(&hostile(&mut random));
        match number % 3 {
            0 => {
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let mut first = [0; 512];
                let _ = stream.read(&mut first);
            }
            1 => drop(answer(&mut (&stream).take(1 << 16), false).ok().filter(|answer| {
                assert!(
                    answer.status < 500 || answer.status == 503,
                    "a server error: {answer:?}"
                );
                true
            })),
            _ => {}
        }
        if number % 1000 == 0 {
            for stream in &mut slow {
                let _ = stream.write_all(b"a");
            }
            serves(directory);
        }
    }
    drop(slow);
    serves(directory);
    let after = process.rss_bytes();
    assert!(
        after < before + GROWTH_BYTES_MAX,
        "{HOSTILE} hostile requests made the platform grow from {before} to {after} bytes"
    );
    until_true("connections are closed", Duration::from_secs(20), || {
        process.descriptors() <= descriptors + 8
    });
    assert!(!platform.log().contains("panicked"), "{}", platform.log());
}

#[test]
fn a_slow_sender_loses_its_connection() {
    let platform = Platform::start();
    let begun = Instant::now();
    let mut stream = connect(platform.directory());
    stream.write_all(b"GET /v1/info HTTP/1.1\r\n").expect("a place");
    let mut read = Vec::new();
    // The manager ends the stream, within the 20 s that it waits for a byte.
    let ended = stream.read_to_end(&mut read);
    assert!(
        ended.is_ok() && begun.elapsed() < Duration::from_secs(19),
        "a request without an end was kept for {:?}: {ended:?}",
        begun.elapsed()
    );
}
