//! Matching of the posted receives and the unexpected messages of one communicator.
//!
//! A message goes to the first posted receive that it matches; a receive takes the first message that it matches.
//! Between two ranks messages keep their order, and a receive from any rank takes the message that arrived first. The
//! matching is a pure state machine; `M` is the caller's record of a message, `P` the caller's record of a receive.

use hotlease_collectives::Rank;
use std::collections::VecDeque;

/// Pattern of the messages that a receive takes; a field without a value matches anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Pattern {
    /// Rank of the sender.
    pub source: Option<Rank>,
    /// Tag of the message.
    pub tag: Option<u32>,
}

impl Pattern {
    /// Any message.
    pub const ANY: Self = Self {
        source: None,
        tag: None,
    };

    /// Messages of this rank with this tag.
    pub const fn of(source: Rank, tag: u32) -> Self {
        Self {
            source: Some(source),
            tag: Some(tag),
        }
    }

    pub(crate) fn is_match(&self, envelope: MessageEnvelope) -> bool {
        self.source.is_none_or(|source| source == envelope.source) && self.takes_tag(envelope.tag)
    }

    fn takes_tag(&self, tag: u32) -> bool {
        self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// Properties by which messages are matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageEnvelope {
    /// Rank of the sender.
    pub source: Rank,
    /// Tag of the message.
    pub tag: u32,
}

struct UnexpectedMessage<M> {
    /// Number among all messages of the communicator: a receive from any rank takes the message with the lowest number.
    number: u64,
    tag: u32,
    message: M,
}

/// Posted receives and unexpected messages of one communicator.
pub struct Matching<P, M> {
    posted: VecDeque<(Pattern, P)>,
    /// Unexpected messages by rank, each in the order of arrival.
    kept: Vec<VecDeque<UnexpectedMessage<M>>>,
    arrivals: u64,
    posted_max: usize,
    /// Number of receives that wait for each rank, and number of receives that wait for any rank.
    waiting: (Vec<usize>, usize),
}

impl<P, M> Matching<P, M> {
    /// Makes an empty matching, for `posted_max` receives at a time. The senders' credit bounds how many messages are
    /// kept.
    pub fn new(posted_max: usize) -> Self {
        Self {
            posted: VecDeque::new(),
            kept: Vec::new(),
            arrivals: 0,
            posted_max,
            waiting: (Vec::new(), 0),
        }
    }

    /// Removes and returns the receive that a message is for. If the result is `None`, [`keep`](Self::keep) the
    /// message.
    pub fn arrive(&mut self, envelope: MessageEnvelope) -> Option<P> {
        let place = self.posted.iter().position(|(pattern, _)| pattern.is_match(envelope))?;
        let (pattern, posted) = self.posted.remove(place)?;
        *self.waiting_of(pattern) -= 1;
        Some(posted)
    }

    /// Whether a posted receive would take this message.
    pub fn is_awaited(&self, envelope: MessageEnvelope) -> bool {
        self.posted.iter().any(|(pattern, _)| pattern.is_match(envelope))
    }

    /// Keeps a message for which there is no receive, after all messages that are kept already.
    pub fn keep(&mut self, envelope: MessageEnvelope, message: M) {
        let source = envelope.source as usize;
        if self.kept.len() <= source {
            self.kept.resize_with(source + 1, VecDeque::new);
        }
        self.kept[source].push_back(UnexpectedMessage {
            number: self.arrivals,
            tag: envelope.tag,
            message,
        });
        self.arrivals += 1;
    }

    /// First message that a receive would take.
    pub fn find(&self, pattern: Pattern) -> Option<(MessageEnvelope, &M)> {
        let (source, place) = self.place(pattern)?;
        let kept = &self.kept[source as usize][place];
        Some((MessageEnvelope { source, tag: kept.tag }, &kept.message))
    }

    /// Removes and returns the first message that a receive would take.
    pub fn take(&mut self, pattern: Pattern) -> Option<(MessageEnvelope, M)> {
        let (source, place) = self.place(pattern)?;
        let kept = self.kept[source as usize].remove(place)?;
        Some((MessageEnvelope { source, tag: kept.tag }, kept.message))
    }

    fn place(&self, pattern: Pattern) -> Option<(Rank, usize)> {
        let first = |source: Rank| {
            let of_source = self.kept.get(source as usize)?;
            let place = of_source.iter().position(|kept| pattern.takes_tag(kept.tag))?;
            Some((of_source[place].number, source, place))
        };
        let found = match pattern.source {
            Some(source) => first(source),
            None => (0..self.kept.len() as Rank).filter_map(first).min(),
        };
        found.map(|(_, source, place)| (source, place))
    }

    /// Posts a receive for a message that has not arrived yet.
    ///
    /// # Errors
    /// Returns the receive if the maximum number of receives wait already.
    pub fn post(&mut self, pattern: Pattern, posted: P) -> Result<(), P> {
        if self.posted.len() >= self.posted_max {
            return Err(posted);
        }
        self.posted.push_back((pattern, posted));
        *self.waiting_of(pattern) += 1;
        Ok(())
    }

    fn waiting_of(&mut self, pattern: Pattern) -> &mut usize {
        let (of_rank, of_any) = &mut self.waiting;
        match pattern.source.map(|source| source as usize) {
            Some(source) => {
                if of_rank.len() <= source {
                    of_rank.resize(source + 1, 0);
                }
                &mut of_rank[source]
            }
            None => of_any,
        }
    }

    /// Number of waiting receives that take messages of this rank, or of any rank; each may take only one tag.
    pub fn waiting_for(&self, source: Rank) -> usize {
        let (of_rank, of_any) = &self.waiting;
        of_rank.get(source as usize).copied().unwrap_or(0) + of_any
    }

    /// Removes and returns the posted receives for which `is_meant` is true, in their order.
    pub fn withdraw(&mut self, mut is_meant: impl FnMut(&Pattern, &P) -> bool) -> Vec<(Pattern, P)> {
        // Most of the time there is no such receive, and nothing has to be moved.
        if !self.posted.iter().any(|(pattern, posted)| is_meant(pattern, posted)) {
            return Vec::new();
        }
        let (meant, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.posted)
            .into_iter()
            .partition(|(pattern, posted)| is_meant(pattern, posted));
        self.posted = others.into();
        for (pattern, _) in &meant {
            *self.waiting_of(*pattern) -= 1;
        }
        meant
    }

    /// Drops the messages of a rank for which `is_kept` is false.
    pub fn retain(&mut self, source: Rank, mut is_kept: impl FnMut(&M) -> bool) {
        if let Some(of_source) = self.kept.get_mut(source as usize) {
            of_source.retain(|kept| is_kept(&kept.message));
        }
    }

    /// Removes and returns all messages that no receive has asked for.
    pub fn drain(&mut self) -> Vec<(Rank, M)> {
        let kept = std::mem::take(&mut self.kept).into_iter().enumerate();
        let kept = kept.flat_map(|(source, of_source)| {
            let messages = of_source.into_iter().map(|kept| kept.message);
            messages.map(move |message| (source as Rank, message))
        });
        kept.collect()
    }

    /// All messages that no receive has asked for, the oldest first.
    pub fn kept_messages(&mut self) -> impl Iterator<Item = (Rank, &mut M)> {
        let mut all: Vec<_> = self
            .kept
            .iter_mut()
            .enumerate()
            .flat_map(|(source, of_source)| of_source.iter_mut().map(move |kept| (source as Rank, kept)))
            .collect();
        all.sort_unstable_by_key(|(_, kept)| kept.number);
        all.into_iter().map(|(source, kept)| (source, &mut kept.message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    type Numbers = Matching<u32, u32>;

    fn from(source: Rank, tag: u32) -> MessageEnvelope {
        MessageEnvelope { source, tag }
    }

    #[test]
    fn receives_take_messages_of_a_rank_in_their_order() {
        let mut matching = Numbers::new(10);
        for number in 0..3 {
            matching.keep(from(1, 7), number);
        }
        let taken: Vec<_> = std::iter::from_fn(|| matching.take(Pattern::of(1, 7))).collect();
        assert_eq!(taken, [(from(1, 7), 0), (from(1, 7), 1), (from(1, 7), 2)]);
    }

    #[test]
    fn any_rank_and_any_tag_take_what_came_first() {
        let mut matching = Numbers::new(10);
        matching.keep(from(5, 1), 50);
        matching.keep(from(0, 2), 20);
        matching.keep(from(5, 2), 51);
        let any_source = Pattern {
            source: None,
            tag: Some(2),
        };
        assert_eq!(matching.find(any_source), Some((from(0, 2), &20)));
        assert_eq!(matching.take(Pattern::ANY), Some((from(5, 1), 50)));
        let any_tag = Pattern {
            source: Some(5),
            tag: None,
        };
        assert_eq!(matching.take(any_tag), Some((from(5, 2), 51)));
        assert_eq!(matching.take(Pattern::ANY), Some((from(0, 2), 20)));
        assert_eq!(matching.take(Pattern::ANY), None);
    }

    #[test]
    fn a_message_goes_to_the_receive_that_was_posted_first() {
        let mut matching = Numbers::new(3);
        matching.post(Pattern::of(1, 1), 0).unwrap();
        matching.post(Pattern::ANY, 1).unwrap();
        matching.post(Pattern::of(2, 2), 2).unwrap();
        assert_eq!(matching.post(Pattern::ANY, 3), Err(3), "no more are posted than may be");
        assert_eq!(matching.arrive(from(2, 2)), Some(1));
        assert_eq!(matching.arrive(from(2, 2)), Some(2));
        assert_eq!(matching.arrive(from(2, 2)), None);
        assert_eq!(matching.arrive(from(1, 1)), Some(0));
    }

    #[test]
    fn a_withdrawn_receive_matches_no_message() {
        let mut matching = Numbers::new(10);
        matching.post(Pattern::of(1, 1), 0).unwrap();
        matching.post(Pattern::of(1, 1), 1).unwrap();
        assert_eq!(matching.withdraw(|_, posted| *posted == 0), [(Pattern::of(1, 1), 0)]);
        assert_eq!(matching.arrive(from(1, 1)), Some(1));
        matching.keep(from(1, 1), 10);
        matching.keep(from(1, 1), 11);
        matching.retain(1, |message| *message == 11);
        assert_eq!(matching.take(Pattern::ANY), Some((from(1, 1), 11)));
        matching.keep(from(1, 1), 12);
        matching.keep(from(0, 1), 13);
        assert_eq!(matching.drain(), [(0, 13), (1, 12)]);
        assert_eq!(matching.take(Pattern::ANY), None);
    }

    /// The simplest matching: two lists, searched from their beginnings.
    #[derive(Default)]
    struct Plain {
        posted: Vec<(Pattern, u32)>,
        kept: Vec<(MessageEnvelope, u32)>,
    }

    impl Plain {
        fn arrive(&mut self, envelope: MessageEnvelope, message: u32) -> Option<u32> {
            match self.posted.iter().position(|(pattern, _)| pattern.is_match(envelope)) {
                Some(place) => Some(self.posted.remove(place).1),
                None => {
                    self.kept.push((envelope, message));
                    None
                }
            }
        }

        fn receive(&mut self, pattern: Pattern, posted: u32) -> Option<(MessageEnvelope, u32)> {
            match self.kept.iter().position(|(envelope, _)| pattern.is_match(*envelope)) {
                Some(place) => Some(self.kept.remove(place)),
                None => {
                    self.posted.push((pattern, posted));
                    None
                }
            }
        }
    }

    #[test]
    fn a_hundred_thousand_steps_match_as_two_plain_lists_do() {
        let seed: u64 = std::env::var("HOTLEASE_SEED").map_or_else(
            |_| rand::random(),
            |text| text.parse().expect("HOTLEASE_SEED is a number"),
        );
        eprintln!("replay with HOTLEASE_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (mut matching, mut plain) = (Numbers::new(usize::MAX), Plain::default());
        for step in 0..100_000 {
            let envelope = from(random.random_range(0..4), random.random_range(0..3));
            match random.random_range(0..5) {
                0 | 1 => {
                    let matched = matching.arrive(envelope);
                    if matched.is_none() {
                        matching.keep(envelope, step);
                    }
                    assert_eq!(matched, plain.arrive(envelope, step), "step {step}");
                }
                2 | 3 => {
                    let pattern = Pattern {
                        source: random.random_bool(0.7).then_some(envelope.source),
                        tag: random.random_bool(0.7).then_some(envelope.tag),
                    };
                    let found = matching.find(pattern).map(|(envelope, message)| (envelope, *message));
                    let taken = matching.take(pattern);
                    assert_eq!(found, taken, "step {step}: found is what is taken");
                    if taken.is_none() {
                        matching.post(pattern, step).unwrap();
                    }
                    assert_eq!(taken, plain.receive(pattern, step), "step {step}");
                }
                _ => {
                    let parity = step % 2;
                    let meant = |posted: &u32| posted.is_multiple_of(7) && posted % 2 == parity;
                    let withdrawn = matching.withdraw(|_, posted| meant(posted));
                    let (gone, others) = plain.posted.iter().partition(|(_, posted)| meant(posted));
                    plain.posted = others;
                    let gone: Vec<_> = gone;
                    assert_eq!(withdrawn, gone, "step {step}");
                }
            }
        }
    }
}
