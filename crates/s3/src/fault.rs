//! Error responses in the format of S3.

use std::fmt;

/// Error response to a request that was not carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// HTTP status.
    pub status: u16,
    /// Error code of S3, by which SDKs decide what to do.
    pub code: &'static str,
    /// Message: what was refused, why, and what to do about it.
    pub message: String,
}

impl Fault {
    /// Fault with this status, code and message.
    pub fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    /// Fault of a request that is not permitted.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(403, "AccessDenied", message)
    }

    /// Fault of a request that is not supported for any caller.
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self::new(501, "NotImplemented", message)
    }

    /// Fault of a request that is malformed.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "InvalidRequest", message)
    }

    /// XML body of the response.
    pub fn to_xml(&self) -> String {
        let mut message = String::with_capacity(self.message.len());
        for letter in self.message.chars() {
            match letter {
                '&' => message.push_str("&amp;"),
                '<' => message.push_str("&lt;"),
                '>' => message.push_str("&gt;"),
                letter if letter.is_control() => message.push('?'),
                letter => message.push(letter),
            }
        }
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{}</Code><Message>{message}</Message></Error>",
            self.code
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Fault {}
