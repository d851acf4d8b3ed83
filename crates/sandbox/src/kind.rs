//! Kinds of sandbox.

use std::fmt;
use std::str::FromStr;

/// Isolation of a worker. Each lease chooses one; docs/sandboxes.md says what each protects against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A process of the agent's own user, in its own group.
    Process,
    /// A process in namespaces of its own, with a minimal root and few system calls.
    Namespace,
    /// A container, made by a runtime that the site has installed.
    Container,
    /// A virtual machine that contains only the worker.
    MicroVm,
}

impl Kind {
    /// All kinds, the weakest first.
    pub const ALL: [Self; 4] = [Self::Process, Self::Namespace, Self::Container, Self::MicroVm];

    /// Name of the kind in lease requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Namespace => "namespace",
            Self::Container => "container",
            Self::MicroVm => "microvm",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error: a text that names no [`Kind`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no kind of sandbox: write process, namespace, container or microvm")]
pub struct BadKind {
    text: String,
}

impl FromStr for Kind {
    type Err = BadKind;

    fn from_str(text: &str) -> Result<Self, BadKind> {
        let named = Self::ALL.into_iter().find(|kind| kind.name() == text);
        named.ok_or_else(|| BadKind { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_and_written_alike() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for bad in ["", "Process", "vm", " namespace"] {
            assert!(bad.parse::<Kind>().is_err(), "{bad:?} was taken");
        }
    }
}
