//! Prepared collective: a collective with its buffers, ready to start.

use super::buffer_spec::{BufferPart, Loan};
use super::collectives::CommunicatorGuard;
use super::failure;
use super::operation::RunningOperation;
use super::operator::RaisedError;
use super::request::Request;
use hotlease_comm::{LentBytes, LentBytesMut, MemberCollective};
use pyo3::prelude::*;

/// A collective with its buffers.
pub struct Prepared<'a> {
    group: &'a CommunicatorGuard,
    collective: MemberCollective<'a>,
    memory: (Loan<LentBytes>, Loan<LentBytesMut>),
    raised: Option<RaisedError>,
}

/// Operation on a prepared collective: [`run`] or [`begin`].
pub type Start<R> = for<'a, 'py> fn(Python<'py>, Prepared<'a>) -> PyResult<R>;

impl<'a> Prepared<'a> {
    pub fn of(
        py: Python<'_>,
        group: &'a CommunicatorGuard,
        collective: MemberCollective<'a>,
        (input, output): (BufferPart, BufferPart),
        raised: Option<RaisedError>,
    ) -> PyResult<Self> {
        let [read, written] = collective.lengths().map_err(|error| failure::of(py, &error))?;
        Ok(Self {
            group,
            collective,
            memory: (input.lend(read), output.lend_mut(written)),
            raised,
        })
    }
}

/// Runs a collective and waits for its end.
pub fn run(py: Python<'_>, prepared: Prepared<'_>) -> PyResult<()> {
    let (member, collective) = (&prepared.group.member, prepared.collective);
    RunningOperation::run(py, member, prepared.memory, prepared.raised, |(input, output)| {
        collective.begin(input.memory(), output.memory())
    })
    .map(drop)
}

/// Starts a collective.
pub fn begin(py: Python<'_>, prepared: Prepared<'_>) -> PyResult<Request> {
    let (member, collective) = (&prepared.group.member, prepared.collective);
    let work = RunningOperation::begin(py, member, prepared.memory, prepared.raised, |(input, output)| {
        collective.begin(input.memory(), output.memory())
    })?;
    Ok(Request::of_work(member, work))
}
