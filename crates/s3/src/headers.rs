//! Headers of requests: headers that are passed on to a store, and the header with the digest of the body.

use crate::fault::Fault;
use crate::request::{S3Request, SOURCE, source_header};
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Header with the digest of the body.
pub(crate) const DIGEST: &str = "x-amz-content-sha256";
/// Header with the time of the request.
pub(crate) const DATE: &str = "x-amz-date";

/// Standard headers that are passed on unchanged.
const STANDARD: &[&str] = &[
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-md5",
    "content-type",
    "expires",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
    "range",
];

/// Headers of S3 that are passed on unchanged.
const S3_HEADERS: &[&str] = &[
    "x-amz-checksum-algorithm",
    "x-amz-checksum-mode",
    "x-amz-checksum-type",
    "x-amz-copy-source-if-match",
    "x-amz-copy-source-if-modified-since",
    "x-amz-copy-source-if-none-match",
    "x-amz-copy-source-if-unmodified-since",
    "x-amz-copy-source-range",
    "x-amz-decoded-content-length",
    "x-amz-expected-bucket-owner",
    "x-amz-metadata-directive",
    "x-amz-mp-object-size",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-trailer",
];

/// Prefixes of further headers of S3 that are passed on unchanged.
const S3_PREFIXES: &[&str] = &["x-amz-checksum-", "x-amz-meta-"];

/// Headers of S3 that are dropped, because they mean nothing to a store or are written anew.
const DROPPED: &[&str] = &[DIGEST, DATE, SOURCE, "x-amz-user-agent"];

/// Value of the digest header of a request: the digest of the body, or a word in place of the digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyDigest(String);

impl BodyDigest {
    /// Reads the header; the store compares the digest with the body.
    pub fn of(headers: &HeaderMap) -> Result<Self, Fault> {
        let text = single_value(headers, DIGEST)?
            .ok_or_else(|| Fault::bad(format!("there is no {DIGEST}, which S3 asks for")))?;
        let is_digest = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match text {
            "UNSIGNED-PAYLOAD" | "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => {}
            _ if is_digest => {}
            streamed if streamed.starts_with("STREAMING-") => {
                return Err(Fault::unknown(format!(
                    "bodies whose chunks are signed one by one ({streamed}) do not go through here; set \
                     AWS_REQUEST_CHECKSUM_CALCULATION=when_required, or switch chunked encoding off in your S3 client \
                     (`payload_signing_enabled`, `chunkedEncodingEnabled(false)`, `disable-multipart-chunked`)"
                )));
            }
            _ => return Err(Fault::bad(format!("{DIGEST} is no digest"))),
        }
        Ok(Self(text.to_owned()))
    }

    /// Value of the header.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Value of a header that may occur at most once.
pub(crate) fn single_value<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Fault> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    let text = value.map(|value| value.to_str()).transpose();
    match text {
        Ok(text) if values.next().is_none() => Ok(text),
        _ => Err(Fault::bad(format!("the header {name} is there twice, or no text"))),
    }
}

/// Headers of a request that are passed on.
pub fn forward_headers(headers: &HeaderMap, asked: &S3Request) -> Result<HeaderMap, Fault> {
    let mut on = HeaderMap::new();
    for (name, value) in headers {
        let text = name.as_str();
        let is_own = text.starts_with("x-amz-");
        let passes = match is_own {
            true => S3_HEADERS.contains(&text) || S3_PREFIXES.iter().any(|begin| text.starts_with(begin)),
            false => STANDARD.contains(&text),
        };
        if passes {
            on.append(name, value.clone());
        } else if is_own && !DROPPED.contains(&text) {
            return Err(Fault::unknown(format!(
                "the header {text} does not go through here: functions read and write objects; rights, tags, locks, storage classes \
                 and keys of encryption are the site's"
            )));
        }
    }
    if let Some(source) = &asked.source {
        let value = HeaderValue::from_str(&source_header(source));
        let value = value.map_err(|_| Fault::bad(format!("{SOURCE} is no text")))?;
        on.insert(HeaderName::from_static(SOURCE), value);
    }
    Ok(on)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn headers(of: &[(&'static str, &'static str)]) -> HeaderMap {
        let of = of.iter();
        of.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn headers_that_change_rights_are_not_forwarded() {
        let of = |headers: &HeaderMap| {
            let asked = S3Request::read(&Method::PUT, "/data/key", headers).expect("good");
            forward_headers(headers, &asked)
        };
        let given = headers(&[
            ("host", "127.0.0.1:9000"),
            ("authorization", "AWS4-HMAC-SHA256 mine"),
            ("content-type", "text/plain"),
            ("content-length", "3"),
            ("connection", "close"),
            ("x-forwarded-for", "elsewhere"),
            ("x-amz-date", "20260102T030405Z"),
            ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
            ("x-amz-meta-run", "7"),
            ("x-amz-checksum-crc32", "AAAAAA=="),
            ("x-amz-copy-source", "/other/a%2Fb%20c"),
        ]);
        let on = of(&given).expect("good");
        let mut names: Vec<_> = on.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "content-length",
                "content-type",
                "x-amz-checksum-crc32",
                "x-amz-copy-source",
                "x-amz-meta-run"
            ]
        );
        assert_eq!(on[SOURCE], "other/a/b%20c");
        for name in [
            "x-amz-acl",
            "x-amz-grant-read",
            "x-amz-tagging",
            "x-amz-security-token",
            "x-amz-object-lock-mode",
            "x-amz-bypass-governance-retention",
            "x-amz-server-side-encryption-aws-kms-key-id",
            "x-amz-website-redirect-location",
        ] {
            let refused = of(&headers(&[(name, "x")])).expect_err(name);
            assert!(
                refused.code == "NotImplemented" && refused.message.contains(name),
                "{refused}"
            );
        }
    }

    #[test]
    fn bodies_are_plain_or_a_store_s_to_check() {
        let of = |value: &'static str| BodyDigest::of(&headers(&[(DIGEST, value)]));
        for good in ["UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"] {
            assert_eq!(of(good).expect("good").text(), good);
        }
        assert!(of("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855").is_ok());
        let refused = of("STREAMING-AWS4-HMAC-SHA256-PAYLOAD").expect_err("signed chunks");
        assert!(
            refused.message.contains("AWS_REQUEST_CHECKSUM_CALCULATION"),
            "{refused}"
        );
        assert!(of("e3b0").is_err() && BodyDigest::of(&HeaderMap::new()).is_err());
    }
}
