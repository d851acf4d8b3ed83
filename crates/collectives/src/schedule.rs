//! Schedule of one rank in one collective: pure data, which an engine runs, a test checks and a model prices.

use std::fmt;

/// Number of a member in a communicator, from 0.
pub type Rank = u32;

/// Memory for elements of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Area {
    /// Data of the caller. Never written.
    Input,
    /// Result for the caller. In place, it also contains the caller's data, and there is no input.
    Output,
    /// Scratch memory of the schedule: [`Schedule::scratch`] elements, with undefined content at first.
    Scratch,
}

/// Consecutive elements in an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AreaSpan {
    /// The area.
    pub area: Area,
    /// The first element, counted from the start of the area.
    pub offset: usize,
    /// Number of elements.
    pub count: usize,
}

impl AreaSpan {
    /// The first `count` elements of an area.
    pub const fn first(area: Area, count: usize) -> Self {
        AreaSpan { area, offset: 0, count }
    }

    /// A part of this span; `offset` counts from the start of the span.
    pub const fn part(self, offset: usize, count: usize) -> Self {
        debug_assert!(offset + count <= self.count, "a part of a span is inside it");
        AreaSpan {
            area: self.area,
            offset: self.offset + offset,
            count,
        }
    }

    /// Index of the element after the last.
    pub const fn end(self) -> usize {
        self.offset.saturating_add(self.count)
    }

    /// Returns whether two spans have an element in common.
    pub const fn overlaps(self, other: AreaSpan) -> bool {
        self.area as u8 == other.area as u8
            && self.count > 0
            && other.count > 0
            && self.offset < other.end()
            && other.offset < self.end()
    }
}

impl fmt::Display for AreaSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let area = match self.area {
            Area::Input => "input",
            Area::Output => "output",
            Area::Scratch => "scratch",
        };
        write!(f, "{area}[{}..{}]", self.offset, self.end())
    }
}

/// One step of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Sends a message to another rank. Messages between two ranks keep their order.
    Send {
        /// The receiver.
        to: Rank,
        /// The content.
        from: AreaSpan,
    },
    /// Receives the next message of another rank, which must have exactly this length.
    Receive {
        /// The sender.
        from: Rank,
        /// Memory for the content.
        into: AreaSpan,
    },
    /// Writes an object that other ranks read, on links through a store.
    Publish {
        /// Name of the object among the objects that this rank publishes in this collective.
        key: u32,
        /// The content.
        from: AreaSpan,
        /// Number of ranks that read the object, each once; then it can be removed.
        readers: u32,
    },
    /// Reads a whole object as soon as it exists.
    Fetch {
        /// The publishing rank.
        of: Rank,
        /// Name of the object at the publishing rank.
        key: u32,
        /// Memory for the content, exactly as long as the object.
        into: AreaSpan,
    },
    /// Copies elements between two spans, which have the same length and do not overlap.
    Copy {
        /// The source.
        from: AreaSpan,
        /// The target.
        into: AreaSpan,
    },
    /// `into = left op right`, element by element, in this order. `into` is `left`, is `right`, or overlaps neither.
    Reduce {
        /// The operand of the lower ranks, if the operator does not commute.
        left: AreaSpan,
        /// The operand of the higher ranks.
        right: AreaSpan,
        /// Memory for the result.
        into: AreaSpan,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Send { to, from } => write!(f, "send {from} to rank {to}"),
            Step::Receive { from, into } => write!(f, "receive {into} from rank {from}"),
            Step::Publish { key, from, readers } => {
                write!(f, "write {from} as object {key}, for {readers} readers")
            }
            Step::Fetch { of, key, into } => write!(f, "read object {key} of rank {of} into {into}"),
            Step::Copy { from, into } => write!(f, "copy {from} to {into}"),
            Step::Reduce { left, right, into } => write!(f, "{into} = {left} op {right}"),
        }
    }
}

/// Transfers that run at the same time, and the local work that follows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// Sends, receives, publishes and fetches: all are started at once, and the round waits for all of them.
    pub transfers: Vec<Step>,
    /// Copies and reductions that follow, one after the other.
    pub local: Vec<Step>,
}

/// Steps of one rank in one collective: rounds, one after the other.
///
/// Messages match by sender and order alone, so two ranks need not have the same number of rounds. A transfer without
/// elements is never made, because both sides can compute that it is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Number of elements in [`Area::Scratch`].
    pub scratch: usize,
    /// The rounds, in order.
    pub rounds: Vec<Round>,
}

impl Schedule {
    /// Checks that the schedule keeps its own rules: peers are ranks of the communicator and not `rank` itself, spans
    /// are inside their areas, the input is not written, and other transfers of a round do not touch the memory that
    /// the round receives into. `input`, `output`: numbers of elements in these areas.
    ///
    /// # Errors
    ///
    /// The first broken rule, in words.
    pub fn check(&self, rank: Rank, ranks: Rank, input: usize, output: usize) -> Result<(), String> {
        let checker = ScheduleChecker {
            rank,
            ranks,
            input,
            output,
            scratch: self.scratch,
        };
        for (number, round) in self.rounds.iter().enumerate() {
            checker
                .round(round)
                .map_err(|why| format!("round {number} of rank {rank}: {why}"))?;
        }
        Ok(())
    }
}

/// Facts that a schedule is checked against.
struct ScheduleChecker {
    rank: Rank,
    /// Number of ranks.
    ranks: Rank,
    /// Number of elements of each area.
    input: usize,
    output: usize,
    scratch: usize,
}

impl ScheduleChecker {
    fn round(&self, round: &Round) -> Result<(), String> {
        if round.transfers.is_empty() && round.local.is_empty() {
            return Err("the round is empty".into());
        }
        let mut written: Vec<AreaSpan> = Vec::new();
        let mut read: Vec<AreaSpan> = Vec::new();
        for step in &round.transfers {
            match *step {
                Step::Send { to: peer, from } => {
                    self.peer(peer)?;
                    self.inside(from)?;
                    read.push(from);
                }
                Step::Publish { from, readers, .. } => {
                    self.inside(from)?;
                    if readers == 0 || readers >= self.ranks {
                        return Err(format!("an object for {readers} readers of {} ranks", self.ranks));
                    }
                    read.push(from);
                }
                Step::Receive { from: peer, into } | Step::Fetch { of: peer, into, .. } => {
                    self.peer(peer)?;
                    self.writable(into)?;
                    written.push(into);
                }
                Step::Copy { .. } | Step::Reduce { .. } => {
                    return Err("local work among the transfers".into());
                }
            }
        }
        check_apart(&mut written, &mut read)?;
        round.local.iter().try_for_each(|step| self.local(step))
    }

    fn local(&self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Copy { from, into } => {
                self.inside(from)?;
                self.writable(into)?;
                if from.count != into.count {
                    return Err(format!("{from} is copied to {into}"));
                }
                if from.overlaps(into) {
                    return Err(format!("{from} is copied into itself, to {into}"));
                }
            }
            Step::Reduce { left, right, into } => {
                self.inside(left)?;
                self.inside(right)?;
                self.writable(into)?;
                if left.count != right.count || left.count != into.count {
                    return Err(format!("{left} and {right} are reduced into {into}"));
                }
                let aliased = |other: AreaSpan| into.overlaps(other) && into != other;
                if aliased(left) || aliased(right) || left.overlaps(right) {
                    return Err(format!("{left}, {right} and their result {into} overlap"));
                }
            }
            _ => return Err("a transfer among the local work".into()),
        }
        Ok(())
    }

    fn peer(&self, peer: Rank) -> Result<(), String> {
        if peer == self.rank || peer >= self.ranks {
            return Err(format!("a message between it and rank {peer} of {}", self.ranks));
        }
        Ok(())
    }

    fn inside(&self, span: AreaSpan) -> Result<(), String> {
        let length = match span.area {
            Area::Input => self.input,
            Area::Output => self.output,
            Area::Scratch => self.scratch,
        };
        match span.offset.checked_add(span.count) {
            _ if span.count == 0 => Err(format!("{span} is empty")),
            Some(end) if end <= length => Ok(()),
            _ => Err(format!("{span} of an area of {length} elements")),
        }
    }

    fn writable(&self, span: AreaSpan) -> Result<(), String> {
        if span.area == Area::Input {
            return Err(format!("the input is written, at {span}"));
        }
        self.inside(span)
    }
}

/// Checks that no written span overlaps another span. Takes `n log n` time: a round of a linear exchange has two spans
/// for each rank.
fn check_apart(written: &mut [AreaSpan], read: &mut [AreaSpan]) -> Result<(), String> {
    let place = |span: &AreaSpan| (span.area, span.offset);
    written.sort_unstable_by_key(place);
    if let Some(pair) = written.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        return Err(format!("{} and {} are received at once", pair[0], pair[1]));
    }
    for span in read {
        // Written spans do not overlap, so only the span that begins last before this span's end must be examined.
        let next = written.partition_point(|other| place(other) < (span.area, span.end()));
        if let Some(other) = next
            .checked_sub(1)
            .map(|last| written[last])
            .filter(|other| other.overlaps(*span))
        {
            return Err(format!("{span} is sent while {other} is received"));
        }
    }
    Ok(())
}
