//! Calls of one function on many inputs: results in order, a bounded number in flight.

use crate::Error;
use crate::calls::future::Invocation;
use crate::invocation::function::Function;
use hotlease_wire::RunCertainty;
use std::collections::VecDeque;
use std::iter::FusedIterator;
use std::time::{Duration, Instant};

/// Invocations in flight for each slot: enough to keep a slot busy while results are taken, and few enough that a slow
/// invocation delays only a few others.
const IN_FLIGHT_PER_SLOT: usize = 16;
/// Time for which a map takes no further lease after it has waited for one in vain. Otherwise each of its inputs would
/// wait for as long as the first.
const NO_LEASE_FOR: Duration = Duration::from_secs(1);

/// The results of a function on each of an iterator's inputs, in order. See [`Function::map`].
pub struct Map<I: Iterator> {
    function: Function,
    inputs: I,
    /// An input for which there was no credit; it is submitted next.
    held: Option<I::Item>,
    window: VecDeque<(I::Item, Result<Invocation, Error>)>,
    width: usize,
    /// The last error of waiting for a lease, and its time.
    without_lease: Option<(Error, Instant)>,
}

impl Function {
    /// Invokes the function on each input, over all slots; returns the results in order.
    pub fn batch(&self, inputs: &[&[u8]]) -> Vec<Result<Vec<u8>, Error>> {
        self.map(inputs.iter().copied()).collect()
    }

    /// Invokes the function on each input that the iterator yields, over all slots, with a bounded number in
    /// flight. Returns an iterator over the results, in order. Further inputs are taken only as results are taken.
    ///
    /// ```no_run
    /// # use hotlease_client::*;
    /// # fn f(function: &Function, lines: Vec<String>) -> Result<(), Error> {
    /// for result in function.map(lines) {
    ///     println!("{}", result?.len());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn map<I>(&self, inputs: I) -> Map<I::IntoIter>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        Map::new(self.clone(), inputs.into_iter())
    }
}

impl<I> Map<I>
where
    I: Iterator,
    I::Item: AsRef<[u8]>,
{
    pub(crate) fn new(function: Function, inputs: I) -> Self {
        let slots = if function.slot.is_some() {
            1
        } else {
            function.inner.slots()
        };
        let depth = function.inner.plan.options.depth as usize;
        let width = slots * depth.min(IN_FLIGHT_PER_SLOT);
        Self {
            function,
            inputs,
            held: None,
            window: VecDeque::with_capacity(width),
            width,
            without_lease: None,
        }
    }

    /// Makes a call, unless there was no lease a moment ago.
    fn attempt<T>(&mut self, call: impl FnOnce(&Function) -> Result<T, Error>) -> Result<T, Error> {
        if let Some((error, since)) = &self.without_lease
            && since.elapsed() < NO_LEASE_FOR
        {
            return Err(error.clone());
        }
        let called = call(&self.function);
        self.without_lease = match &called {
            Err(error) if lacks_lease(error) => Some((error.clone(), Instant::now())),
            _ => None,
        };
        called
    }

    fn fill(&mut self) {
        while self.window.len() < self.width {
            let Some(input) = self.held.take().or_else(|| self.inputs.next()) else {
                return;
            };
            // If this map has nothing in flight, other threads have all the credits, so waiting for a credit is right.
            let wait = self.window.is_empty();
            match self.attempt(|function| function.submit_once(input.as_ref(), wait)) {
                Err(Error::NoCredit) => {
                    self.held = Some(input);
                    return;
                }
                submitted => self.window.push_back((input, submitted)),
            }
        }
    }
}

/// Whether a call failed because there was no lease for it.
fn lacks_lease(error: &Error) -> bool {
    let is_of_lease = matches!(
        error,
        Error::NotRunning { .. } | Error::LeaseEnded { .. } | Error::Refused(_) | Error::NoRoom { .. }
    );
    is_of_lease && error.ran() == RunCertainty::No
}

impl<I> Iterator for Map<I>
where
    I: Iterator,
    I::Item: AsRef<[u8]>,
{
    type Item = Result<Vec<u8>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.fill();
        let (input, submitted) = self.window.pop_front()?;
        let error = match submitted.and_then(Invocation::wait) {
            Ok(output) => return Some(Ok(output)),
            Err(error) => error,
        };
        let mut again = self.function.new_attempts();
        let after = match error {
            // The call is made again on the first slot that has a core.
            Error::NoCore => Ok(()),
            error => again.count_failure(error),
        };
        Some(after.and_then(|()| self.attempt(|function| function.call_again(input.as_ref(), again))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (low, high) = self.inputs.size_hint();
        let started = self.window.len() + usize::from(self.held.is_some());
        (
            low.saturating_add(started),
            high.and_then(|high| high.checked_add(started)),
        )
    }
}

impl<I> FusedIterator for Map<I>
where
    I: FusedIterator,
    I::Item: AsRef<[u8]>,
{
}
