//! Signatures of version 4 in the form of S3. The same code checks them with a lease's keys and makes them with the
//! site's keys.

use crate::fault::Fault;
use crate::headers::{BodyDigest, DATE, DIGEST, single_value};
use crate::time::SignatureTime;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use std::fmt;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "s3";
const END: &str = "aws4_request";
/// Header with the session token of temporary keys.
const TOKEN: &str = "x-amz-security-token";
/// Longest Authorization header, bytes.
const AUTHORIZATION_BYTES_MAX: usize = 4096;

/// Keys of a signer. The secret is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKeys {
    /// Id of the access key.
    pub id: String,
    /// Secret of the access key.
    pub secret: String,
    /// Session token of temporary keys.
    pub token: Option<String>,
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

/// Parts of a request that are signed besides its headers.
#[derive(Debug, Clone, Copy)]
pub struct SignedParts<'a> {
    /// Method, as in HTTP.
    pub method: &'a str,
    /// Path in the canonical form.
    pub path: &'a str,
    /// Query in the canonical form.
    pub query: &'a str,
}

/// Time and region for which a signature is valid.
struct Scope<'a> {
    moment: SignatureTime,
    region: &'a str,
}

/// SHA-256 of bytes, in the format of body digests.
pub fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Parsed Authorization header: the signer, and the signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorization<'a> {
    /// Id of the access key.
    pub id: &'a str,
    day: &'a str,
    region: &'a str,
    names: Vec<&'a str>,
    signature: &'a str,
}

impl<'a> Authorization<'a> {
    /// Parses the Authorization header.
    pub fn of(headers: &'a HeaderMap) -> Result<Self, Fault> {
        let text = single_value(headers, AUTHORIZATION.as_str())?.filter(|text| text.len() <= AUTHORIZATION_BYTES_MAX);
        let text = text.ok_or_else(|| {
            Fault::denied(
                "the request is not signed in its Authorization header; use the keys that are in the environment of the lease's workers \
                 (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), and no presigned URLs",
            )
        })?;
        let malformed = || {
            Fault::new(
                400,
                "AuthorizationHeaderMalformed",
                "the Authorization header is not that of AWS Signature Version 4",
            )
        };
        let fields = text.strip_prefix(ALGORITHM).ok_or_else(malformed)?;
        let (mut credential, mut names, mut signature) = (None, None, None);
        for field in fields.split(',') {
            let (name, value) = field.trim().split_once('=').ok_or_else(malformed)?;
            let place = match name {
                "Credential" => &mut credential,
                "SignedHeaders" => &mut names,
                "Signature" => &mut signature,
                _ => return Err(malformed()),
            };
            if place.replace(value).is_some() {
                return Err(malformed());
            }
        }
        let (Some(credential), Some(names), Some(signature)) = (credential, names, signature) else {
            return Err(malformed());
        };
        let parts: Vec<&str> = credential.split('/').collect();
        let [id, day, region, SERVICE, END] = parts[..] else {
            return Err(malformed());
        };
        let names: Vec<&str> = names.split(';').collect();
        let is_sorted = names.windows(2).all(|two| two[0] < two[1]);
        match is_sorted {
            true => Ok(Self {
                id,
                day,
                region,
                names,
                signature,
            }),
            false => Err(malformed()),
        }
    }

    /// Checks that the request was signed with these keys, not long ago, and that all headers that S3 requires are
    /// signed.
    pub fn check(
        &self,
        part: SignedParts<'_>,
        headers: &HeaderMap,
        keys: &SigningKeys,
        now: SignatureTime,
    ) -> Result<(), Fault> {
        let text = single_value(headers, DATE)?.and_then(SignatureTime::parse);
        let moment = text.ok_or_else(|| Fault::bad(format!("there is no {DATE} such as 20260102T030405Z")))?;
        if !moment.is_near(now) {
            return Err(Fault::new(
                403,
                "RequestTimeTooSkewed",
                "the request was signed more than 15 minutes from now",
            ));
        }
        let payload = BodyDigest::of(headers)?;
        let has_to_be = |name: &HeaderName| name == "host" || name.as_str().starts_with("x-amz-");
        let unsigned = headers
            .keys()
            .find(|name| has_to_be(name) && !self.names.contains(&name.as_str()));
        if let Some(name) = unsigned {
            return Err(Fault::denied(format!("the header {name} is not signed")));
        }
        if !self.names.contains(&"host") {
            return Err(Fault::denied("the header host is not signed"));
        }
        let signed = self.names.iter().map(|name| Ok((*name, value(headers, name)?)));
        let signed = signed.collect::<Result<Vec<_>, Fault>>()?;
        let scope = Scope {
            moment,
            region: self.region,
        };
        let theirs = hex::decode(self.signature).unwrap_or_default();
        let is_of_day = self.day == moment.day();
        let code = signature_mac(keys, &scope, &canonical(part, &signed, payload.text()));
        // The comparison takes constant time, so that the duration does not reveal how many bytes match.
        match code.verify_slice(&theirs) {
            Ok(()) if is_of_day && self.id == keys.id => Ok(()),
            _ => Err(Fault::new(
                403,
                "SignatureDoesNotMatch",
                "the signature is not that of this request with the lease's keys; use those in the environment of the lease's workers \
                 (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)",
            )),
        }
    }
}

impl SigningKeys {
    /// Signs a request with these headers for a store, and inserts the headers of the signature.
    pub fn sign(
        &self,
        part: SignedParts<'_>,
        headers: &mut HeaderMap,
        (host, region): (&str, &str),
        payload: &str,
        now: SignatureTime,
    ) -> Result<(), Fault> {
        let text = |text: &str| {
            HeaderValue::from_str(text).map_err(|_| {
                Fault::new(
                    500,
                    "InternalError",
                    "the site's keys, or the address of its store, are no text of a header",
                )
            })
        };
        headers.insert(HeaderName::from_static("host"), text(host)?);
        headers.insert(HeaderName::from_static(DATE), text(&now.text())?);
        headers.insert(HeaderName::from_static(DIGEST), text(payload)?);
        if let Some(token) = &self.token {
            headers.insert(HeaderName::from_static(TOKEN), text(token)?);
        }
        let mut names: Vec<String> = headers.keys().map(|name| name.as_str().to_owned()).collect();
        // Some proxies rewrite this header, so it is not signed.
        names.retain(|name| name != "content-length");
        names.sort_unstable();
        let signed = names.iter().map(|name| Ok((&**name, value(headers, name)?)));
        let signed = signed.collect::<Result<Vec<_>, Fault>>()?;
        let scope = Scope { moment: now, region };
        let code = signature_mac(self, &scope, &canonical(part, &signed, payload))
            .finalize()
            .into_bytes();
        let authorization = format!(
            "{ALGORITHM} Credential={}/{}, SignedHeaders={}, Signature={}",
            self.id,
            scope.text(),
            names.join(";"),
            hex::encode(code)
        );
        headers.insert(AUTHORIZATION, text(&authorization)?);
        Ok(())
    }
}

impl Scope<'_> {
    fn text(&self) -> String {
        format!("{}/{}/{SERVICE}/{END}", self.moment.day(), self.region)
    }
}

/// Value of a header in the form that is signed: without surrounding spaces, several values joined by commas.
fn value(headers: &HeaderMap, name: &str) -> Result<String, Fault> {
    let mut values = Vec::new();
    for value in headers.get_all(name) {
        let text = std::str::from_utf8(value.as_bytes());
        let text = text.map_err(|_| Fault::bad(format!("the header {name} is no UTF-8")))?;
        values.push(text.split_ascii_whitespace().collect::<Vec<_>>().join(" "));
    }
    match values.is_empty() {
        true => Err(Fault::denied(format!(
            "the header {name} is said to be signed and is not there"
        ))),
        false => Ok(values.join(",")),
    }
}

fn canonical(part: SignedParts<'_>, headers: &[(&str, String)], payload: &str) -> String {
    let SignedParts { method, path, query } = part;
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}:{value}\n"))
        .collect();
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    format!("{method}\n{path}\n{query}\n{lines}\n{}\n{payload}", names.join(";"))
}

fn signature_mac(keys: &SigningKeys, scope: &Scope<'_>, canonical: &str) -> Hmac<Sha256> {
    let first = format!("AWS4{}", keys.secret);
    let parts = [&scope.moment.day(), scope.region, SERVICE, END];
    let key = parts.into_iter().fold(first.into_bytes(), |key, part| {
        mac(&key, part.as_bytes()).finalize().into_bytes().to_vec()
    });
    let text = format!(
        "{ALGORITHM}\n{}\n{}\n{}",
        scope.moment.text(),
        scope.text(),
        digest(canonical.as_bytes())
    );
    mac(&key, text.as_bytes())
}

fn mac(key: &[u8], text: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes any key length");
    mac.update(text);
    mac
}

#[cfg(test)]
mod tests;
