//! Which requests there are: everything that is not here does not go through.

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// To read an object, or know of it.
    Read,
    /// To write or remove one, or a part of one.
    Write,
    /// To know which objects, or unfinished ones, there are.
    List,
    /// To know that a bucket is there.
    Look,
    /// To remove those that the body names.
    RemoveMany,
}

struct Row {
    method: &'static str,
    /// Of a key, or of a bucket.
    of_key: bool,
    /// What the query has to have.
    marks: &'static [&'static str],
    /// What it may have besides.
    may: &'static [&'static str],
    operation: Operation,
}

/// What SDKs add to say which of their functions was called.
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

const ROWS: &[Row] = &[
    row("GET", true, &[], READING, Operation::Read),
    row("HEAD", true, &[], READING, Operation::Read),
    row("PUT", true, &[], &[], Operation::Write),
    row("DELETE", true, &[], &[], Operation::Write),
    // Objects in several parts: begun, a part, what parts there are, finished, given up.
    row("POST", true, &["uploads"], &[], Operation::Write),
    row("PUT", true, &["partNumber", "uploadId"], &[], Operation::Write),
    row(
        "GET",
        true,
        &["uploadId"],
        &["encoding-type", "max-parts", "part-number-marker"],
        Operation::Write,
    ),
    row("POST", true, &["uploadId"], &[], Operation::Write),
    row("DELETE", true, &["uploadId"], &[], Operation::Write),
    row("HEAD", false, &[], &[], Operation::Look),
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
        Operation::List,
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
        Operation::List,
    ),
    row(
        "GET",
        false,
        &[],
        &["delimiter", "encoding-type", "marker", "max-keys", "prefix"],
        Operation::List,
    ),
    row("POST", false, &["delete"], &[], Operation::RemoveMany),
];

const fn row(
    method: &'static str,
    of_key: bool,
    marks: &'static [&'static str],
    may: &'static [&'static str],
    operation: Operation,
) -> Row {
    Row {
        method,
        of_key,
        marks,
        may,
        operation,
    }
}

/// What a request of this method and these names in its query is.
pub(crate) fn operation(method: &str, of_key: bool, names: &[&str]) -> Option<Operation> {
    let fits = |row: &&Row| {
        row.method == method
            && row.of_key == of_key
            && row.marks.iter().all(|mark| names.contains(mark))
            && names
                .iter()
                .all(|name| *name == ALWAYS || row.marks.contains(name) || row.may.contains(name))
    };
    ROWS.iter().find(fits).map(|row| row.operation)
}
