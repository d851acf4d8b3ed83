//! Table of supported requests; all others are refused.

/// Operation that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum S3Operation {
    /// Read an object or its metadata.
    Read,
    /// Write or remove an object, or a part of an object.
    Write,
    /// List objects, or uploads that are not finished.
    List,
    /// Check that a bucket exists.
    CheckBucket,
    /// Remove the objects that the body names.
    RemoveMany,
}

struct RequestRow {
    method: &'static str,
    /// Whether the path names a key, and not only a bucket.
    of_key: bool,
    /// Query parameters that are required.
    marks: &'static [&'static str],
    /// Query parameters that are allowed in addition.
    may: &'static [&'static str],
    operation: S3Operation,
}

/// Query parameter in which SDKs name the function that the program called.
const ALWAYS: &str = "x-id";

const READING: &[&str] = &[
    "partNumber",
    "response-cache-control",
    "response-content-disposition",
    "response-content-encoding",
    "response-content-language",
    "response-content-type",
    "response-expires",
    "versionId",
];

const ROWS: &[RequestRow] = &[
    row("GET", true, &[], READING, S3Operation::Read),
    row("HEAD", true, &[], READING, S3Operation::Read),
    row("PUT", true, &[], &[], S3Operation::Write),
    row("DELETE", true, &[], &[], S3Operation::Write),
    // Multipart uploads: begin, upload a part, list parts, finish, abort.
    row("POST", true, &["uploads"], &[], S3Operation::Write),
    row("PUT", true, &["partNumber", "uploadId"], &[], S3Operation::Write),
    row(
        "GET",
        true,
        &["uploadId"],
        &["encoding-type", "max-parts", "part-number-marker"],
        S3Operation::Write,
    ),
    row("POST", true, &["uploadId"], &[], S3Operation::Write),
    row("DELETE", true, &["uploadId"], &[], S3Operation::Write),
    row("HEAD", false, &[], &[], S3Operation::CheckBucket),
    row(
        "GET",
        false,
        &["list-type"],
        &[
            "continuation-token",
            "delimiter",
            "encoding-type",
            "fetch-owner",
            "max-keys",
            "prefix",
            "start-after",
        ],
        S3Operation::List,
    ),
    row(
        "GET",
        false,
        &["uploads"],
        &[
            "delimiter",
            "encoding-type",
            "key-marker",
            "max-uploads",
            "prefix",
            "upload-id-marker",
        ],
        S3Operation::List,
    ),
    row(
        "GET",
        false,
        &[],
        &["delimiter", "encoding-type", "marker", "max-keys", "prefix"],
        S3Operation::List,
    ),
    row("POST", false, &["delete"], &[], S3Operation::RemoveMany),
];

const fn row(
    method: &'static str,
    of_key: bool,
    marks: &'static [&'static str],
    may: &'static [&'static str],
    operation: S3Operation,
) -> RequestRow {
    RequestRow {
        method,
        of_key,
        marks,
        may,
        operation,
    }
}

/// Returns the operation of a request with this method and these names of query parameters; `None` if it is not
/// supported.
pub(crate) fn operation(method: &str, of_key: bool, names: &[&str]) -> Option<S3Operation> {
    let fits = |row: &&RequestRow| {
        row.method == method
            && row.of_key == of_key
            && row.marks.iter().all(|mark| names.contains(mark))
            && names
                .iter()
                .all(|name| *name == ALWAYS || row.marks.contains(name) || row.may.contains(name))
    };
    ROWS.iter().find(fits).map(|row| row.operation)
}
