//! Edges between tasks: one compact entry for each input of each task.
//!
//! An edge is in two lists at once: the inputs of its consumer, in their order, and the consumers of its producer. All
//! edges are in one array and refer to each other by indices of 32 bits. An edge takes 20 bytes and no allocation of
//! its own, and is removed in constant time.

use crate::id::NIL;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    /// Task that makes the result.
    pub producer: u32,
    /// Task that needs the result.
    pub consumer: u32,
    /// Next input of the consumer; in a free entry, the next free entry.
    pub next_input: u32,
    pub next_consumer: u32,
    pub previous_consumer: u32,
}

/// The list of a producer's consumers, in the order in which they were submitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConsumerList {
    pub first: u32,
    pub last: u32,
}

impl ConsumerList {
    pub const EMPTY: Self = Self { first: NIL, last: NIL };

    pub fn is_empty(self) -> bool {
        self.first == NIL
    }
}

#[derive(Debug)]
pub(crate) struct Edges {
    entries: Vec<Edge>,
    free: u32,
    used: u32,
}

impl Edges {
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NIL,
            used: 0,
        }
    }

    /// Number of edges in use.
    pub fn len(&self) -> u32 {
        self.used
    }

    pub fn get(&self, edge: u32) -> Edge {
        self.entries[edge as usize]
    }

    /// Inserts an edge before the consumer's other inputs, and behind the producer's other consumers.
    pub fn link(&mut self, producer: u32, consumer: u32, first_input: &mut u32, consumers: &mut ConsumerList) {
        let edge = Edge {
            producer,
            consumer,
            next_input: *first_input,
            next_consumer: NIL,
            previous_consumer: consumers.last,
        };
        let at = if self.free == NIL {
            self.entries.push(edge);
            (self.entries.len() - 1) as u32
        } else {
            let at = self.free;
            self.free = self.entries[at as usize].next_input;
            self.entries[at as usize] = edge;
            at
        };
        match consumers.last {
            NIL => consumers.first = at,
            last => self.entries[last as usize].next_consumer = at,
        }
        consumers.last = at;
        *first_input = at;
        self.used += 1;
    }

    /// Removes an edge from its producer's list and frees it. The caller must remove the edge from the consumer's list.
    pub fn unlink(&mut self, at: u32, consumers: &mut ConsumerList) {
        let edge = self.entries[at as usize];
        match edge.previous_consumer {
            NIL => consumers.first = edge.next_consumer,
            previous => self.entries[previous as usize].next_consumer = edge.next_consumer,
        }
        match edge.next_consumer {
            NIL => consumers.last = edge.previous_consumer,
            next => self.entries[next as usize].previous_consumer = edge.previous_consumer,
        }
        self.entries[at as usize].next_input = self.free;
        self.free = at;
        self.used -= 1;
    }

    /// Ends the consumer's list of inputs after this edge.
    pub fn cut_after(&mut self, edge: u32) {
        self.entries[edge as usize].next_input = NIL;
    }
}
