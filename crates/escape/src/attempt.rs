//! Attempts to escape, and their outcomes.

use nix::errno::Errno;
use std::fmt;
use std::io;

/// A line of the threat model, with the attempts that test it.
#[derive(Debug)]
pub struct Threat {
    /// Action that must be impossible for functions.
    pub threat: &'static str,
    /// All attempts to perform the action.
    pub attempts: &'static [Attempt],
}

/// Evidence of an escape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The attempt's own report that the kernel allowed a forbidden action.
    OwnClaim,
    /// The neighbour's or the agent's secret in the attempt's output. The attempt was not given these secrets.
    Secret,
    /// An effect that the target of the attempt noticed.
    Effect,
}

/// Condition under which an attempt must succeed in a sandbox of kind `process`. An attempt that cannot succeed
/// there proves nothing in other sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MustSucceed {
    /// Must succeed for every process.
    Always,
    /// Must succeed for a process with this capability.
    WithCapability(Capability),
    /// Need not succeed: the kernel itself prevents the attempt, or the result depends on the node.
    Never,
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
    /// Whether the capability is in this set.
    pub fn is_in(self, set: u64) -> bool {
        set & (1 << self as u64) != 0
    }
}

impl fmt::Display for MustSucceed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("any process"),
            Self::WithCapability(capability) => {
                f.write_str("cap_")?;
                for (index, letter) in format!("{capability:?}").char_indices() {
                    if letter.is_ascii_uppercase() && index > 0 {
                        f.write_str("_")?;
                    }
                    write!(f, "{}", letter.to_ascii_lowercase())?;
                }
                Ok(())
            }
            Self::Never => f.write_str("no process"),
        }
    }
}

/// One attempt to escape.
pub struct Attempt {
    /// Name, for `hotlease-escape try NAME`.
    pub name: &'static str,
    /// Description in one line.
    pub what: &'static str,
    /// Evidence of an escape.
    pub evidence: Evidence,
    /// Condition under which the attempt must succeed outside sandboxes.
    pub teeth: MustSucceed,
    /// Requirement of the attempt that not all nodes meet, if any.
    pub needs: Option<&'static str>,
    /// Whether the attempt is a flood: it continues for a while, and meanwhile the neighbour's pace is measured.
    pub flood: bool,
    /// Whether the attempt continues until it is killed.
    pub endless: bool,
    /// Whether success of the attempt is no escape if the network is granted.
    pub networked: bool,
    go: fn() -> AttemptResult,
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempt({})", self.name)
    }
}

/// Makes an attempt that always succeeds outside sandboxes, and whose own report is evidence.
pub(crate) const fn attempt(name: &'static str, what: &'static str, go: fn() -> AttemptResult) -> Attempt {
    Attempt {
        name,
        what,
        evidence: Evidence::OwnClaim,
        teeth: MustSucceed::Always,
        needs: None,
        flood: false,
        endless: false,
        networked: false,
        go,
    }
}

/// Table of attempts: name, description, function, and the properties that differ from those of a plain [`attempt`].
macro_rules! attempts {
    ($($name:literal, $what:literal, $go:path $(, $way:ident($($value:expr)?))*;)*) => {
        &[$($crate::attempt::attempt($name, $what, $go)$(.$way($($value)?))*),*]
    };
}
pub(crate) use attempts;

impl Attempt {
    pub(crate) const fn by_secret(mut self) -> Self {
        self.evidence = Evidence::Secret;
        self
    }

    pub(crate) const fn by_effect(mut self) -> Self {
        self.evidence = Evidence::Effect;
        self
    }

    pub(crate) const fn with_capability(mut self, capability: Capability) -> Self {
        self.teeth = MustSucceed::WithCapability(capability);
        self
    }

    pub(crate) const fn need_not_succeed(mut self) -> Self {
        self.teeth = MustSucceed::Never;
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

    pub(crate) const fn networked(mut self) -> Self {
        self.networked = true;
        self
    }

    /// Makes the attempt in this process, which must end afterwards.
    pub fn go(&self) -> AttemptOutcome {
        match (self.go)() {
            Ok(got) => AttemptOutcome::Escaped(got),
            Err(StopReason::Denied(how)) => AttemptOutcome::Contained(how),
            Err(StopReason::Untried(why)) => AttemptOutcome::Untried(why),
        }
    }
}

/// Outcome of an attempt, as the attempt itself reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The attempt was stopped; the text says by what.
    Contained(String),
    /// The attempt got out; the text says what it achieved.
    Escaped(String),
    /// The attempt could not be made; the text says why.
    Untried(String),
}

impl AttemptOutcome {
    /// Exit status of `hotlease-escape try`.
    pub fn status(&self) -> u8 {
        match self {
            Self::Contained(_) => 0,
            Self::Escaped(_) => 1,
            Self::Untried(_) => 2,
        }
    }

    /// Parses the last line that a process printed. Returns `None` if the line is no outcome.
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

impl fmt::Display for AttemptOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, rest) = match self {
            Self::Contained(rest) => ("contained", rest),
            Self::Escaped(rest) => ("escaped", rest),
            Self::Untried(rest) => ("untried", rest),
        };
        // Keeps the text on one line, even if the attempt has read line feeds.
        let rest: String = rest.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        write!(f, "{word}: {rest}")
    }
}

/// Result of an attempt: what it achieved, or why it stopped.
pub(crate) type AttemptResult = Result<String, StopReason>;

/// Reason why an attempt stopped.
#[derive(Debug)]
pub(crate) enum StopReason {
    /// The sandbox or the kernel prevented the attempt, or there was nothing to find.
    Denied(String),
    /// The node lacks what the attempt needs.
    Untried(String),
}

impl From<Errno> for StopReason {
    fn from(errno: Errno) -> Self {
        Self::Denied(format!("{errno:?}"))
    }
}

impl From<io::Error> for StopReason {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Errno::from_raw(number).into(),
            None => Self::Denied(error.to_string()),
        }
    }
}

/// Adds the place at which an attempt was stopped.
pub(crate) fn with_place<E: Into<StopReason>>(place: impl fmt::Display) -> impl FnOnce(E) -> StopReason {
    move |error| match error.into() {
        StopReason::Denied(how) => StopReason::Denied(format!("{place}: {how}")),
        untried => untried,
    }
}

/// Stops because nothing was found.
pub(crate) fn denied<T>(how: impl Into<String>) -> Result<T, StopReason> {
    Err(StopReason::Denied(how.into()))
}

/// Stops because the attempt cannot be made here.
pub(crate) fn untried<T>(why: impl Into<String>) -> Result<T, StopReason> {
    Err(StopReason::Untried(why.into()))
}
