//! Parsing of requests, and the check whether a lease may make them.

use crate::encoding::{decode, encode};
use crate::fault::Fault;
use crate::operations::{self, S3Operation};
use hotlease_wire::storage::{StoragePlace, is_bucket, is_key};
use http::{HeaderMap, Method};

/// Header that names the object to copy from.
pub(crate) const SOURCE: &str = "x-amz-copy-source";
/// Longest path and query, bytes.
const TARGET_BYTES_MAX: usize = 8 << 10;

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Request {
    /// Bucket of the request.
    pub bucket: String,
    /// Object of the request; empty: the request is about the bucket.
    pub key: String,
    /// Operation that is requested.
    pub operation: S3Operation,
    /// Bucket and key of the object to copy from.
    pub source: Option<(String, String)>,
    /// Path in the canonical form, which is signed.
    path: String,
    /// Names and values of the query, in the order in which they are signed; each name occurs once.
    query: Vec<(String, String)>,
}

/// Places that permit a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PermittedPlaces {
    /// Index of the place that contains the request's bucket or object.
    pub place: usize,
    /// Index of the place that contains the object to copy from.
    pub source: Option<usize>,
}

impl S3Request {
    /// Parses a request's line, and the header that names the object to copy from. The bucket is the first part of
    /// the path: host names are ignored.
    pub fn read(method: &Method, target: &str, headers: &HeaderMap) -> Result<Self, Fault> {
        let invalid = |what: &str| Fault::new(400, "InvalidURI", what);
        if target.len() > TARGET_BYTES_MAX {
            return Err(invalid("the path and its query are too long"));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = path
            .strip_prefix('/')
            .and_then(decode)
            .ok_or_else(|| invalid("the path is not encoded as S3 has it"))?;
        let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
        if bucket.is_empty() {
            return Err(Fault::denied(
                "buckets are not listed here: a lease names those that it reaches (`storage`), as s3://BUCKET[/PREFIX]:ro or :rw",
            ));
        }
        if !is_bucket(bucket) {
            return Err(invalid(
                "the path does not begin with a bucket's name; buckets are in paths here, not in names of hosts: set path-style \
                 addressing in your S3 client",
            ));
        }
        check_key(key)?;
        let query = pairs(query)?;
        let names: Vec<&str> = query.iter().map(|(name, _)| &**name).collect();
        let of_key = !key.is_empty();
        let operation = operations::operation(method.as_str(), of_key, &names).ok_or_else(|| {
            let of = if of_key { "an object" } else { "a bucket" };
            let with = match names.is_empty() {
                true => String::new(),
                false => format!(" with `{}`", names.join("`, `")),
            };
            let hint = match names.iter().any(|name| name.starts_with("X-Amz-")) {
                true => ": requests are signed in a header here, not in their query; do not use presigned URLs",
                false => {
                    ": functions read, write, list, copy and remove objects; what else there is of buckets, versions, tags and rights \
                     is not for them"
                }
            };
            Fault::unknown(format!("{method} of {of}{with} does not go through here{hint}"))
        })?;
        let source = source(headers)?;
        if source.is_some() && !(operation == S3Operation::Write && method == Method::PUT) {
            return Err(Fault::bad(format!("{SOURCE} has no meaning with {method}")));
        }
        Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            operation,
            source,
            path: format!("/{}", encode(&path, true)),
            query,
        }
        .with_checked_prefix()
    }

    /// Refuses a prefix that leads out of its folder at a store that takes keys for paths.
    fn with_checked_prefix(self) -> Result<Self, Fault> {
        let prefix = self.prefix();
        check_key(prefix.strip_suffix('/').unwrap_or(prefix))?;
        Ok(self)
    }

    /// Path in the canonical form, which is signed and passed on.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Query in the canonical form, which is signed and passed on.
    pub fn query(&self) -> String {
        let pair = |(name, value): &(String, String)| format!("{}={}", encode(name, false), encode(value, false));
        self.query.iter().map(pair).collect::<Vec<_>>().join("&")
    }

    /// Checks whether the request may be carried out with these places.
    pub fn check(&self, places: &[StoragePlace]) -> Result<PermittedPlaces, Fault> {
        let place = places.iter().position(|place| self.is_in(place));
        let place = place.ok_or_else(|| out_of_reach(&self.description(), places))?;
        let source = match &self.source {
            None => None,
            Some((bucket, key)) => {
                let covers = places.iter().position(|place| place.covers(bucket, key));
                let what = format!("s3://{bucket}/{key} to read");
                Some(covers.ok_or_else(|| out_of_reach(&what, places))?)
            }
        };
        Ok(PermittedPlaces { place, source })
    }

    fn is_in(&self, place: &StoragePlace) -> bool {
        match self.operation {
            S3Operation::Read => place.covers(&self.bucket, &self.key),
            S3Operation::Write => place.writable && place.covers(&self.bucket, &self.key),
            S3Operation::List => place.covers_all(&self.bucket, self.prefix()),
            S3Operation::CheckBucket => place.bucket == self.bucket,
            // Each object that the body names is checked by itself.
            S3Operation::RemoveMany => place.writable && place.bucket == self.bucket,
        }
    }

    /// Description of what the request reaches, for messages.
    fn description(&self) -> String {
        let Self { bucket, key, .. } = self;
        match self.operation {
            S3Operation::Read => format!("s3://{bucket}/{key} to read"),
            S3Operation::Write => format!("s3://{bucket}/{key} to write"),
            S3Operation::List => format!(
                "all of s3://{bucket} that begins with {:?} (a folder's prefix ends with a slash)",
                self.prefix()
            ),
            S3Operation::CheckBucket => format!("s3://{bucket}"),
            S3Operation::RemoveMany => format!("s3://{bucket} to write"),
        }
    }

    /// Prefix of the keys to list.
    fn prefix(&self) -> &str {
        let prefix = self.query.iter().find(|(name, _)| name == "prefix");
        prefix.map_or("", |(_, value)| value)
    }

    /// Checks whether an object that the body names may be removed. The object must be in the writable place with the
    /// index `place`.
    pub fn check_removal(&self, key: &str, places: &[StoragePlace], place: usize) -> Result<(), Fault> {
        check_key(key)?;
        // Only the place of the request itself is checked, because the request is sent to one store.
        let covers = |place: &StoragePlace| place.writable && place.covers(&self.bucket, key);
        match places.get(place).is_some_and(covers) {
            true => Ok(()),
            false => Err(out_of_reach(
                &format!(
                    "s3://{}/{key} to write, beside what else is to be removed at once",
                    self.bucket
                ),
                places,
            )),
        }
    }
}

fn check_key(key: &str) -> Result<(), Fault> {
    match key.is_empty() || is_key(key) {
        true => Ok(()),
        false => Err(Fault::new(
            400,
            "InvalidURI",
            "keys with an empty part, `.`, `..` or control characters do not go through here, because some stores take keys for paths",
        )),
    }
}

fn out_of_reach(what: &str, places: &[StoragePlace]) -> Fault {
    let reached: Vec<String> = places.iter().map(StoragePlace::to_string).collect();
    Fault::denied(format!(
        "this lease does not reach {what}; it reaches {}; ask for more with the lease's `storage` (Python: ExecutorOptions(storage=[\"s3://BUCKET/PREFIX:rw\"]), \
         shell: --storage), as far as the site grants it",
        reached.join(", ")
    ))
}

fn source(headers: &HeaderMap) -> Result<Option<(String, String)>, Fault> {
    let mut values = headers.get_all(SOURCE).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let bad = || {
        Fault::bad(format!(
            "{SOURCE} is BUCKET/KEY here, encoded as in paths, without a version"
        ))
    };
    let text = value
        .to_str()
        .ok()
        .filter(|text| !text.contains('?') && text.len() <= TARGET_BYTES_MAX);
    let text = text
        .and_then(decode)
        .filter(|_| values.next().is_none())
        .ok_or_else(bad)?;
    let (bucket, key) = text
        .strip_prefix('/')
        .unwrap_or(&text)
        .split_once('/')
        .ok_or_else(bad)?;
    if !is_bucket(bucket) || !is_key(key) {
        return Err(bad());
    }
    Ok(Some((bucket.to_owned(), key.to_owned())))
}

/// Value of the header `SOURCE` that is passed on.
pub(crate) fn source_header((bucket, key): &(String, String)) -> String {
    format!("{bucket}/{}", encode(key, true))
}

fn pairs(query: &str) -> Result<Vec<(String, String)>, Fault> {
    let invalid = |what: &str| Fault::new(400, "InvalidURI", what);
    let mut pairs = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(name), Some(value)) = (decode(name), decode(value)) else {
            return Err(invalid("the query is not encoded as S3 has it"));
        };
        pairs.push((name, value));
    }
    // The encoding does not change the order, because all names consist of letters and `-`.
    pairs.sort();
    if pairs.windows(2).any(|two| two[0].0 == two[1].0) {
        return Err(invalid("the query has a name twice"));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests;
