//! Memory of one collective at one rank, and the local steps of its schedule.

use crate::operator::{Operands, Reduction};
use crate::schedule::{Area, AreaSpan, Step};

/// The three areas of a schedule, as bytes.
#[derive(Debug)]
pub struct Areas<'a> {
    /// Data of the caller.
    pub input: &'a [u8],
    /// Memory for the caller's result.
    pub output: &'a mut [u8],
    /// Scratch memory of the schedule.
    pub scratch: &'a mut [u8],
    /// Bytes of an element.
    pub element: usize,
}

impl Areas<'_> {
    /// Returns the bytes of a span.
    ///
    /// # Panics
    ///
    /// If the span is not inside its area, which [`Schedule::check`](crate::Schedule::check) reports before.
    pub fn read(&self, span: AreaSpan) -> &[u8] {
        let range = self.range(span);
        match span.area {
            Area::Input => &self.input[range],
            Area::Output => &self.output[range],
            Area::Scratch => &self.scratch[range],
        }
    }

    /// Returns the bytes of a span for writing.
    ///
    /// # Panics
    ///
    /// If the span is not inside its area, or is in the caller's input.
    pub fn write(&mut self, span: AreaSpan) -> &mut [u8] {
        let range = self.range(span);
        match span.area {
            Area::Input => panic!("a collective's input is never written"),
            Area::Output => &mut self.output[range],
            Area::Scratch => &mut self.scratch[range],
        }
    }

    /// Runs a local step: a copy or a reduction. Collectives that reduce need `reduction`.
    ///
    /// # Panics
    ///
    /// If a span is not inside its area, if spans of the step differ in length, if the step is a transfer, or if the
    /// step reduces and `reduction` is missing.
    pub fn local(&mut self, step: &Step, reduction: Option<&Reduction>) {
        match *step {
            Step::Copy { from, into } => {
                let ([from], into) = self.borrow([from], into);
                into.copy_from_slice(from);
            }
            Step::Reduce { left, right, into } => {
                let reduction = reduction.expect("a collective that reduces has an operator");
                let reduced = if into == left {
                    let ([right], left) = self.borrow([right], into);
                    reduction.apply(Operands::OntoLeft { left, right })
                } else if into == right {
                    let ([left], right) = self.borrow([left], into);
                    reduction.apply(Operands::OntoRight { left, right })
                } else {
                    let ([left, right], into) = self.borrow([left, right], into);
                    reduction.apply(Operands::Separate { left, right, into })
                };
                reduced.expect("spans of a reduction have one length");
            }
            _ => panic!("{step:?} is not local"),
        }
    }

    fn range(&self, span: AreaSpan) -> std::ops::Range<usize> {
        span.offset * self.element..span.end() * self.element
    }

    /// Borrows some spans for reading and one span for writing, which must not overlap the spans for reading.
    fn borrow<const N: usize>(&mut self, read: [AreaSpan; N], write: AreaSpan) -> ([&[u8]; N], &mut [u8]) {
        let (target, sources) = (self.range(write), read.map(|span| self.range(span)));
        let (written, other) = match write.area {
            Area::Input => panic!("a collective's input is never written"),
            Area::Output => (&mut *self.output, &*self.scratch),
            Area::Scratch => (&mut *self.scratch, &*self.output),
        };
        let (before, rest) = written.split_at_mut(target.start);
        let (into, after) = rest.split_at_mut(target.len());
        let mut sources = sources.into_iter();
        let read = read.map(|span| {
            let range = sources.next().expect("as many ranges as spans");
            match span.area {
                Area::Input => &self.input[range],
                area if area != write.area => &other[range],
                _ if range.end <= target.start => &before[range],
                _ => &after[range.start - target.end..range.end - target.end],
            }
        });
        (read, into)
    }
}
