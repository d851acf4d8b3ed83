//! Why a request is not carried out, as clients of S3 read it.

use std::fmt;

/// An error answer. Nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// HTTP's number.
    pub status: u16,
    /// S3's word, by which SDKs decide what to do.
    pub code: &'static str,
    /// What was refused, why, and what to do about it.
    pub message: String,
}

impl Fault {
    /// Of this kind.
    pub fn new(status: u16, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    /// What may not be done.
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(403, "AccessDenied", message)
    }

    /// What does not go through here, whoever asks.
    pub(crate) fn unknown(message: impl Into<String>) -> Self {
        Self::new(501, "NotImplemented", message)
    }

    /// What cannot be understood.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(400, "InvalidRequest", message)
    }

    /// As a body.
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
