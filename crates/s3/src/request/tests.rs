use super::*;
use http::header::{HeaderName, HeaderValue};

fn places() -> Vec<StoragePlace> {
    ["s3://data/ann:rw", "s3://shared/reference:ro", "s3://all:rw"]
        .map(|text| text.parse().expect("a place"))
        .to_vec()
}

/// Parses and checks a request; returns its operation, or the code of the fault.
fn judged(method: &str, target: &str, source: Option<&str>) -> Result<S3Operation, &'static str> {
    let mut headers = HeaderMap::new();
    if let Some(source) = source {
        let value = HeaderValue::from_str(source).expect("text");
        headers.insert(HeaderName::from_static(SOURCE), value);
    }
    let method: Method = method.parse().expect("a method");
    let asked = S3Request::read(&method, target, &headers).map_err(|fault| fault.code)?;
    asked.check(&places()).map_err(|fault| fault.code)?;
    Ok(asked.operation)
}

#[test]
fn requests_are_let_through_by_table_and_place() {
    use S3Operation::{CheckBucket, List, Read, RemoveMany, Write};
    const BEYOND: Result<S3Operation, &str> = Err("AccessDenied");
    const UNKNOWN: Result<S3Operation, &str> = Err("NotImplemented");
    const INVALID: Result<S3Operation, &str> = Err("InvalidURI");
    for (method, target, expected) in [
        ("GET", "/data/ann/a", Ok(Read)),
        ("GET", "/data/ann", Ok(Read)),
        ("GET", "/data/ann/a?partNumber=1&x-id=GetObject", Ok(Read)),
        ("HEAD", "/shared/reference/a", Ok(Read)),
        ("PUT", "/data/ann/a?x-id=PutObject", Ok(Write)),
        ("DELETE", "/data/ann/a%20b", Ok(Write)),
        ("POST", "/data/ann/a?uploads", Ok(Write)),
        ("POST", "/data/ann/a?uploads=", Ok(Write)),
        ("PUT", "/data/ann/a?partNumber=1&uploadId=x", Ok(Write)),
        ("GET", "/data/ann/a?uploadId=x", Ok(Write)),
        ("POST", "/data/ann/a?uploadId=x", Ok(Write)),
        ("DELETE", "/data/ann/a?uploadId=x", Ok(Write)),
        ("GET", "/data?list-type=2&prefix=ann/", Ok(List)),
        ("GET", "/data/?list-type=2&prefix=ann%2F", Ok(List)),
        ("GET", "/data?prefix=ann/a&delimiter=%2F", Ok(List)),
        ("GET", "/data?uploads&prefix=ann/", Ok(List)),
        ("GET", "/all?list-type=2", Ok(List)),
        ("HEAD", "/data", Ok(CheckBucket)),
        ("POST", "/data?delete", Ok(RemoveMany)),
        // Outside of the lease's places.
        ("GET", "/data/bob/a", BEYOND),
        ("GET", "/data/annette", BEYOND),
        ("GET", "/other/ann/a", BEYOND),
        ("PUT", "/shared/reference/a", BEYOND),
        ("DELETE", "/shared/reference/a", BEYOND),
        ("GET", "/shared/reference/a?uploadId=x", BEYOND),
        ("POST", "/shared?delete", BEYOND),
        ("HEAD", "/other", BEYOND),
        ("GET", "/data?list-type=2&prefix=ann/../bob/", INVALID),
        ("GET", "/data?list-type=2&prefix=ann/%2E%2E", INVALID),
        ("GET", "/data?list-type=2&prefix=ann//a", INVALID),
        ("GET", "/all?prefix=../other/", INVALID),
        ("GET", "/data?list-type=2", BEYOND),
        ("GET", "/data?list-type=2&prefix=ann", BEYOND),
        ("GET", "/data?list-type=2&prefix=", BEYOND),
        ("GET", "/data?uploads", BEYOND),
        ("GET", "/", BEYOND),
        // Attempts to climb out of a path.
        ("GET", "/data/ann/../bob/a", INVALID),
        ("GET", "/data/ann/%2e%2e/bob/a", INVALID),
        ("GET", "/data/ann/..%2fbob/a", INVALID),
        ("GET", "/data/ann%2F..%2Fbob", INVALID),
        ("GET", "/data/ann/./a", INVALID),
        ("GET", "/data//ann/a", INVALID),
        ("GET", "/data/ann//a", INVALID),
        ("GET", "/data/ann/a%00b", INVALID),
        ("GET", "/data/ann/%zz", INVALID),
        ("GET", "/data/ann/%ff", INVALID),
        ("GET", "//data/ann/a", BEYOND),
        ("GET", "/../data/ann/a", INVALID),
        ("GET", "/Data/ann/a", INVALID),
        ("GET", "data/ann/a", INVALID),
        ("GET", "/data?prefix=ann/&prefix=bob/", INVALID),
        ("GET", "/data?prefix=%ff", INVALID),
        // Requests that are not supported.
        ("GET", "/data/ann/a?acl", UNKNOWN),
        ("PUT", "/data/ann/a?acl", UNKNOWN),
        ("PUT", "/data/ann/a?tagging", UNKNOWN),
        ("PUT", "/data/ann/a?versionId=1", UNKNOWN),
        ("DELETE", "/data/ann/a?versionId=1", UNKNOWN),
        ("POST", "/data/ann/a?select&select-type=2", UNKNOWN),
        ("POST", "/data/ann/a", UNKNOWN),
        ("GET", "/data?policy", UNKNOWN),
        ("GET", "/all?versions&prefix=ann/", UNKNOWN),
        ("GET", "/data?location", UNKNOWN),
        ("PUT", "/data?policy", UNKNOWN),
        ("PUT", "/all", UNKNOWN),
        ("DELETE", "/all", UNKNOWN),
        ("PATCH", "/data/ann/a", UNKNOWN),
        ("GET", "/data/ann/a?X-Amz-Signature=00", UNKNOWN),
        ("GET", "/data/ann/a?list-type=2", UNKNOWN),
    ] {
        assert_eq!(judged(method, target, None), expected, "{method} {target}");
    }
}

#[test]
fn the_source_of_a_copy_must_be_permitted_too() {
    for (source, expected) in [
        ("shared/reference/a", Ok(S3Operation::Write)),
        ("/shared/reference/a", Ok(S3Operation::Write)),
        ("%2Fshared%2Freference%2Fa", Ok(S3Operation::Write)),
        ("data/bob/a", Err("AccessDenied")),
        ("other/a", Err("AccessDenied")),
        ("shared/reference/../a", Err("InvalidRequest")),
        ("shared/reference/%2e%2e/a", Err("InvalidRequest")),
        ("shared/reference/a?versionId=1", Err("InvalidRequest")),
        ("arn:aws:s3:::shared/reference/a", Err("InvalidRequest")),
        ("shared", Err("InvalidRequest")),
        ("", Err("InvalidRequest")),
    ] {
        assert_eq!(judged("PUT", "/data/ann/a", Some(source)), expected, "{source}");
    }
    assert_eq!(
        judged("GET", "/data/ann/a", Some("shared/reference/a")),
        Err("InvalidRequest")
    );
    let part = judged("PUT", "/data/ann/a?partNumber=1&uploadId=x", Some("data/bob/a"));
    assert_eq!(part, Err("AccessDenied"));
}

#[test]
fn the_forwarded_request_is_the_judged_request() {
    let asked = S3Request::read(
        &Method::GET,
        "/data/ann/%61 %C3%A4%2Fb+c?response-content-type=a%2fb&partNumber=1",
        &HeaderMap::new(),
    );
    let asked = asked.expect("good");
    assert_eq!(asked.key, "ann/a ä/b+c");
    assert_eq!(asked.path(), "/data/ann/a%20%C3%A4/b%2Bc");
    assert_eq!(asked.query(), "partNumber=1&response-content-type=a%2Fb");
    let again = S3Request::read(
        &Method::GET,
        &format!("{}?{}", asked.path(), asked.query()),
        &HeaderMap::new(),
    );
    assert_eq!(again.expect("good"), asked);
    let escaped = S3Request::read(&Method::GET, "/data/ann/%252e%252e/a", &HeaderMap::new()).expect("no dots");
    assert_eq!(escaped.path(), "/data/ann/%252e%252e/a");
}

#[test]
fn refusals_say_what_why_and_what_to_ask_for() {
    let asked = S3Request::read(&Method::PUT, "/data/bob/a", &HeaderMap::new()).expect("good");
    let fault = asked.check(&places()).expect_err("bob's");
    for words in [
        "s3://data/bob/a to write",
        "s3://data/ann:rw, s3://shared/reference:ro",
        "storage=[",
    ] {
        assert!(fault.message.contains(words), "{fault} does not say {words}");
    }
    let xml = Fault::denied("<a> & \u{1}").to_xml();
    assert!(
        xml.ends_with("<Error><Code>AccessDenied</Code><Message>&lt;a&gt; &amp; ?</Message></Error>"),
        "{xml}"
    );
    let asked = S3Request::read(&Method::POST, "/data?delete", &HeaderMap::new()).expect("good");
    let removal = |key| asked.check_removal(key, &places(), 0).map_err(|fault| fault.code);
    assert_eq!(removal("ann/a"), Ok(()));
    assert_eq!(removal("bob/a"), Err("AccessDenied"));
    assert_eq!(removal("ann/../bob/a"), Err("InvalidURI"));
}
