//! What an attempt is, and how it can end.

use nix::errno::Errno;
use std::fmt;
use std::io;

/// A line of the threat model, with what is tried at it.
#[derive(Debug)]
pub struct Theme {
    /// What a function must not do.
    pub threat: &'static str,
    /// All that is tried.
    pub attempts: &'static [Attempt],
}

/// By what an escape is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The kernel let the attempt do what it must not: it says so.
    Said,
    /// It shows the neighbour's or the agent's secret, which it was not told.
    Secret,
    /// Whoever it was done to noticed.
    Seen,
}

/// Who must succeed in a sandbox of kind `process`: an attempt that cannot succeed there would prove nothing elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Teeth {
    /// Everybody.
    Anybody,
    /// Whoever has this capability.
    With(Capability),
    /// Nobody must: the kernel itself holds it, or the machine decides.
    Nobody,
}

/// Capabilities that decide whether an attempt succeeds outside sandboxes, with their numbers in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "capabilities(7) describes them")]
pub enum Capability {
    Chown = 0,
    DacOverride = 1,
    DacReadSearch = 2,
    Setgid = 6,
    Setuid = 7,
    NetAdmin = 12,
    NetRaw = 13,
    IpcLock = 14,
    SysModule = 16,
    SysRawio = 17,
    SysChroot = 18,
    SysPtrace = 19,
    SysPacct = 20,
    SysAdmin = 21,
    SysBoot = 22,
    SysNice = 23,
    SysResource = 24,
    SysTime = 25,
    Mknod = 27,
    Setfcap = 31,
    Syslog = 34,
}

impl Capability {
    /// Whether it is in this set.
    pub fn is_in(self, set: u64) -> bool {
        set & (1 << self as u64) != 0
    }
}

impl fmt::Display for Teeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anybody => f.write_str("anybody"),
            Self::With(capability) => {
                f.write_str("cap_")?;
                for (index, letter) in format!("{capability:?}").char_indices() {
                    if letter.is_ascii_uppercase() && index > 0 {
                        f.write_str("_")?;
                    }
                    write!(f, "{}", letter.to_ascii_lowercase())?;
                }
                Ok(())
            }
            Self::Nobody => f.write_str("nobody"),
        }
    }
}

/// One attempt to get out.
pub struct Attempt {
    /// Its name: what `hotlease-escape try` is told.
    pub name: &'static str,
    /// What it tries, in one line.
    pub what: &'static str,
    /// By what an escape is known.
    pub evidence: Evidence,
    /// Who must succeed outside.
    pub teeth: Teeth,
    /// What the machine must have for it to be tried at all, where not all have it.
    pub needs: Option<&'static str>,
    /// Whether it is a flood: it goes on for a while, and the neighbour's pace is measured beside it.
    pub flood: bool,
    /// Whether it goes on until it is ended.
    pub endless: bool,
    go: fn() -> Attempted,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempt({})", self.name)
    }
}

/// An attempt that anybody makes with success outside sandboxes, and that is believed when it says so.
pub(crate) const fn attempt(name: &'static str, what: &'static str, go: fn() -> Attempted) -> Attempt {
    Attempt {
        name,
        what,
        evidence: Evidence::Said,
        teeth: Teeth::Anybody,
        needs: None,
        flood: false,
        endless: false,
        go,
    }
}

impl Attempt {
    pub(crate) const fn secret(mut self) -> Self {
        self.evidence = Evidence::Secret;
        self
    }

    pub(crate) const fn seen(mut self) -> Self {
        self.evidence = Evidence::Seen;
        self
    }

    pub(crate) const fn with(mut self, capability: Capability) -> Self {
        self.teeth = Teeth::With(capability);
        self
    }

    pub(crate) const fn by_nobody(mut self) -> Self {
        self.teeth = Teeth::Nobody;
        self
    }

    pub(crate) const fn needs(mut self, what: &'static str) -> Self {
        self.needs = Some(what);
        self
    }

    pub(crate) const fn flood(mut self) -> Self {
        self.flood = true;
        self
    }

    pub(crate) const fn endless(mut self) -> Self {
        self.endless = true;
        self
    }

    /// Makes it, in this process, which is to end afterwards.
    pub fn go(&self) -> Outcome {
        match (self.go)() {
            Ok(got) => Outcome::Escaped(got),
            Err(Stop::Denied(how)) => Outcome::Contained(how),
            Err(Stop::Untried(why)) => Outcome::Untried(why),
        }
    }
}

/// How an attempt ended, by what it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// How it was stopped.
    Contained(String),
    /// What it got.
    Escaped(String),
    /// Why it could not be tried here.
    Untried(String),
}

impl Outcome {
    /// Exit status of `hotlease-escape try`.
    pub fn status(&self) -> u8 {
        match self {
            Self::Contained(_) => 0,
            Self::Escaped(_) => 1,
            Self::Untried(_) => 2,
        }
    }

    /// From the last line that a process printed; `None` if it did not get so far.
    pub fn read(output: &str) -> Option<Self> {
        let line = output.lines().last()?;
        let (word, rest) = line.split_once(": ")?;
        let rest = rest.to_owned();
        match word {
            "contained" => Some(Self::Contained(rest)),
            "escaped" => Some(Self::Escaped(rest)),
            "untried" => Some(Self::Untried(rest)),
            _ => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, rest) = match self {
            Self::Contained(rest) => ("contained", rest),
            Self::Escaped(rest) => ("escaped", rest),
            Self::Untried(rest) => ("untried", rest),
        };
        // One line, whatever was read somewhere.
        let rest: String = rest
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        write!(f, "{word}: {rest}")
    }
}

/// What was got, or what stopped it.
pub(crate) type Attempted = Result<String, Stop>;

/// What stops an attempt.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The sandbox, the kernel, or that there is nothing to be seen.
    Denied(String),
    /// The machine has not what it needs.
    Untried(String),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Denied(format!("{errno:?}"))
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Errno::from_raw(number).into(),
            None => Self::Denied(error.to_string()),
        }
    }
}

/// Says where an attempt was stopped.
pub(crate) fn at<E: Into<Stop>>(place: impl fmt::Display) -> impl FnOnce(E) -> Stop {
    move |error| match error.into() {
        Stop::Denied(how) => Stop::Denied(format!("{place}: {how}")),
        untried => untried,
    }
}

/// Stopped by there being nothing.
pub(crate) fn denied<T>(how: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Denied(how.into()))
}

/// Not to be tried here.
pub(crate) fn untried<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Untried(why.into()))
}
