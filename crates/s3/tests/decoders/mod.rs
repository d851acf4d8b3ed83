//! Decoders of requests and bodies from functions, with the properties that must hold for any bytes given to them.
//!
//! Shared by the mutation test (`mutations.rs`) and the fuzz target (`fuzz/`).

use hotlease_s3::{Authorization, BodyDigest, S3Operation, S3Request, forward_headers, parse_removal};
use hotlease_wire::storage::StoragePlace;
use http::Method;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Decoder with its checks.
pub struct Decoder {
    /// Name of the decoder's fuzz target and corpus folder.
    pub name: &'static str,
    /// Checks the properties for these bytes; returns whether the bytes were accepted.
    pub check: fn(&[u8]) -> bool,
    /// Valid encodings, each variant at least once.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All decoders of requests.
pub const DECODERS: &[Decoder] = &[
    Decoder {
        name: "s3_request",
        check: request,
        seeds: requests,
    },
    Decoder {
        name: "s3_removal",
        check: removal,
        seeds: removals,
    },
];

/// Parses a method and target, and headers, each on a line, as an HTTP server accepts them.
fn parsed(bytes: &[u8]) -> Option<(Method, String, HeaderMap)> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let first = std::str::from_utf8(lines.next()?).ok()?;
    let (method, target) = first.split_once(' ')?;
    let uri: http::Uri = target.parse().ok()?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let at = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..at]).ok()?;
        headers.append(name, HeaderValue::from_bytes(&line[at + 1..]).ok()?);
    }
    Some((method.parse().ok()?, uri.path_and_query()?.as_str().to_owned(), headers))
}

fn request(bytes: &[u8]) -> bool {
    let Some((method, target, headers)) = parsed(bytes) else {
        return false;
    };
    // Any result is right, but a panic is not.
    let _ = Authorization::of(&headers);
    let _ = BodyDigest::of(&headers);
    let Ok(asked) = S3Request::read(&method, &target, &headers) else {
        return false;
    };
    if let Ok(on) = forward_headers(&headers, &asked) {
        for name in ["x-amz-acl", "authorization", "x-amz-security-token", "x-amz-tagging"] {
            assert!(!on.contains_key(name), "{name} goes on");
        }
    }
    // The parts that are passed on are parsed to the same request.
    let (path, query) = (asked.path(), asked.query());
    let again = S3Request::read(&method, &format!("{path}?{query}"), &headers).expect("it was understood");
    assert_eq!(again, asked);
    let place = |text: &str| text.parse::<StoragePlace>().expect("a place");
    let places = [place("s3://data/ann:rw"), place("s3://shared:ro")];
    let Ok(judged) = asked.check(&places) else {
        return true;
    };
    // The places are checked in another way than by `S3Request::check`.
    let is_beneath =
        |bucket: &str, key: &str| bucket == "shared" || (bucket == "data" && (key == "ann" || key.starts_with("ann/")));
    let climbs = path.split('/').any(|part| matches!(part, "." | ".."));
    assert!(!climbs, "{path} climbs");
    match asked.operation {
        S3Operation::Read => assert!(is_beneath(&asked.bucket, &asked.key), "{path} is read"),
        S3Operation::Write => {
            assert!(
                asked.bucket == "data" && is_beneath("data", &asked.key),
                "{path} is written"
            );
        }
        S3Operation::RemoveMany => assert_eq!(asked.bucket, "data", "{path} is removed from"),
        S3Operation::List => {
            let is_own = asked.bucket == "shared" || query.contains("prefix=ann%2F");
            assert!(is_own, "{path}?{query} is listed");
        }
        S3Operation::CheckBucket => assert!(matches!(&*asked.bucket, "data" | "shared"), "{path} is seen"),
    }
    if let Some((bucket, key)) = &asked.source {
        assert!(
            judged.source.is_some() && is_beneath(bucket, key),
            "{bucket}/{key} is copied"
        );
    }
    true
}

fn requests() -> Vec<Vec<u8>> {
    let signed = "authorization:AWS4-HMAC-SHA256 Credential=HL0/20260102/us-east-1/s3/aws4_request, \
                  SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=00ff\n\
                  host:127.0.0.1:9000\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:20260102T030405Z";
    let lines = [
        format!("GET /data/ann/a%20b?partNumber=1\n{signed}"),
        format!("PUT /data/ann/a?partNumber=1&uploadId=x\nx-amz-meta-run:7\n{signed}"),
        format!("PUT /data/ann/copy\nx-amz-copy-source:shared/%C3%A4/a\n{signed}"),
        "GET /data?list-type=2&prefix=ann%2Fa&delimiter=%2F".to_owned(),
        "GET /shared?prefix=".to_owned(),
        "HEAD /data/".to_owned(),
        "POST /data?delete".to_owned(),
        "DELETE /data/ann/dir/".to_owned(),
        "GET /data/ann/%252e%252e/a".to_owned(),
    ];
    lines.map(String::into_bytes).to_vec()
}

fn removal(bytes: &[u8]) -> bool {
    let Ok(keys) = parse_removal(bytes) else {
        return false;
    };
    assert!(keys.len() <= 1000);
    let text = std::str::from_utf8(bytes).expect("it was read");
    assert_eq!(text.matches("<Key>").count(), keys.len(), "a key that was not seen");
    assert!(!text.contains("<!"), "what readers differ in");
    true
}

fn removals() -> Vec<Vec<u8>> {
    let bodies = [
        "<Delete></Delete>",
        "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Object><Key>ann/a</Key></Object><Quiet>true</Quiet></Delete>",
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Delete>\n<Object><Key>a&amp;&#x41;&#66;&lt;&gt;&quot;&apos;</Key></Object>\n</Delete>",
    ];
    bodies.map(|body| body.as_bytes().to_vec()).to_vec()
}
