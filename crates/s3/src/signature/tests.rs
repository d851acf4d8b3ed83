use super::*;
use http::Method;

fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
    let of = of.iter();
    of.map(|(name, value)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_str(value).expect("text"),
        )
    })
    .collect()
}

fn keys(secret: &str) -> SigningKeys {
    SigningKeys {
        id: "AKIAIOSFODNN7EXAMPLE".into(),
        secret: secret.into(),
        token: None,
    }
}

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const GET: SignedParts<'_> = SignedParts {
    method: "GET",
    path: "/test.txt",
    query: "",
};

/// First example of S3's manual ("Authenticating Requests: Using the Authorization Header").
fn example() -> HeaderMap {
    headers(&[
        ("host", "examplebucket.s3.amazonaws.com"),
        ("range", "bytes=0-9"),
        ("x-amz-content-sha256", EMPTY),
        ("x-amz-date", "20130524T000000Z"),
        (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
    ])
}

fn at(text: &str) -> SignatureTime {
    SignatureTime::parse(text).expect("a moment")
}

#[test]
fn the_manual_s_example_is_signed_as_there() {
    let example = example();
    let authorization = Authorization::of(&example).expect("good");
    assert_eq!(authorization.id, "AKIAIOSFODNN7EXAMPLE");
    authorization
        .check(GET, &example, &keys(SECRET), at("20130524T000100Z"))
        .expect("good");
    let mut made = headers(&[("range", "bytes=0-9")]);
    let to = ("examplebucket.s3.amazonaws.com", "us-east-1");
    keys(SECRET)
        .sign(GET, &mut made, to, EMPTY, at("20130524T000000Z"))
        .expect("signed");
    assert_eq!(made, example);
}

#[test]
fn a_signature_is_of_one_request_one_day_and_one_secret() {
    let good = example();
    let now = at("20130524T000100Z");
    let code = |part: SignedParts<'_>, headers: &HeaderMap, secret: &str, now: SignatureTime| {
        let authorization = Authorization::of(headers)?;
        authorization.check(part, headers, &keys(secret), now)
    };
    let refused = |part, headers: &HeaderMap, secret, now| code(part, headers, secret, now).expect_err("refused").code;
    assert_eq!(code(GET, &good, SECRET, now), Ok(()));
    assert_eq!(refused(GET, &good, "another", now), "SignatureDoesNotMatch");
    let put = SignedParts { method: "PUT", ..GET };
    assert_eq!(refused(put, &good, SECRET, now), "SignatureDoesNotMatch");
    let elsewhere = SignedParts {
        path: "/other.txt",
        ..GET
    };
    assert_eq!(refused(elsewhere, &good, SECRET, now), "SignatureDoesNotMatch");
    let more = SignedParts { query: "acl=", ..GET };
    assert_eq!(refused(more, &good, SECRET, now), "SignatureDoesNotMatch");
    assert_eq!(
        refused(GET, &good, SECRET, at("20130524T001501Z")),
        "RequestTimeTooSkewed"
    );
    assert_eq!(
        refused(GET, &good, SECRET, at("20130523T234459Z")),
        "RequestTimeTooSkewed"
    );
    let with = |name: &'static str, value: &str| {
        let mut changed = good.clone();
        changed.insert(
            HeaderName::from_static(name),
            HeaderValue::from_str(value).expect("text"),
        );
        changed
    };
    assert_eq!(
        refused(GET, &with("range", "bytes=0-10"), SECRET, now),
        "SignatureDoesNotMatch"
    );
    assert_eq!(refused(GET, &with("x-amz-meta-a", "b"), SECRET, now), "AccessDenied");
    assert_eq!(
        refused(GET, &with("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), SECRET, now),
        "SignatureDoesNotMatch"
    );
    let text = good["authorization"].to_str().expect("text").to_owned();
    for (changed, why) in [
        (text.replace("20130524", "20130523"), "SignatureDoesNotMatch"),
        (text.replace("f0e8", "f0e9"), "SignatureDoesNotMatch"),
        (text.replace("Signature=f0e8", "Signature=zz"), "SignatureDoesNotMatch"),
        (text.replace("host;range", "range;host"), "AuthorizationHeaderMalformed"),
        (text.replace("host;", ""), "AccessDenied"),
        (text.replace("/s3/", "/sts/"), "AuthorizationHeaderMalformed"),
        (text.replace("AWS4", "AWS"), "AuthorizationHeaderMalformed"),
        (format!("{text}, Signature=00"), "AuthorizationHeaderMalformed"),
        (
            text.replace("range;", "range;x-missing;"),
            "AuthorizationHeaderMalformed",
        ),
        (text.replace("x-amz-date", "x-amz-date;x-missing"), "AccessDenied"),
    ] {
        assert_eq!(
            refused(GET, &with("authorization", &changed), SECRET, now),
            why,
            "{changed}"
        );
    }
    let mut unsigned = good.clone();
    unsigned.remove("authorization");
    assert_eq!(refused(GET, &unsigned, SECRET, now), "AccessDenied");
}

#[test]
fn own_signatures_pass_verification() {
    let asked = crate::S3Request::read(
        &Method::GET,
        "/data?list-type=2&prefix=a%20b/&delimiter=/",
        &HeaderMap::new(),
    );
    let asked = asked.expect("good");
    let (path, query) = (asked.path(), asked.query());
    let part = SignedParts {
        method: "GET",
        path,
        query: &query,
    };
    let keys = SigningKeys {
        token: Some("for a time".into()),
        ..keys(SECRET)
    };
    let now = at("20260102T030405Z");
    let mut made = headers(&[("x-amz-meta-a", "  several   spaces ")]);
    keys.sign(part, &mut made, ("127.0.0.1:9000", "here"), "UNSIGNED-PAYLOAD", now)
        .expect("signed");
    let authorization = Authorization::of(&made).expect("good");
    assert_eq!(authorization.check(part, &made, &keys, now), Ok(()));
    assert_eq!(format!("{keys:?}"), "Keys");
}
