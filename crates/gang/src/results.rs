//! Result of a call, made from the results of its ranks.

use crate::Error;
use crate::error::code;
use hotlease_client::Error as ClientError;

/// Result of a rank.
pub(crate) type RankResult = Result<Vec<u8>, ClientError>;

/// Returns whether the error may mean that a worker or the lease is gone.
pub(crate) fn may_lose_worker(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::WorkerDied { .. }
            | ClientError::OutcomeUnknown { .. }
            | ClientError::Deadline { .. }
            | ClientError::LeaseEnded { .. }
    )
}

/// Returns the outputs of all ranks, or the error of the call. The error of a rank that failed by itself is preferred
/// to errors that this failure caused at other ranks.
pub(crate) fn merge_results(ended: Vec<RankResult>) -> Result<Vec<Vec<u8>>, Error> {
    let ranks = ended.len() as u32;
    let failed = (0..).zip(&ended).filter_map(|(rank, ended)| {
        let error = ended.as_ref().err()?;
        Some((consequence(error), rank, error))
    });
    match failed.min_by_key(|(consequence, rank, _)| (*consequence, *rank)) {
        Some((_, rank, error)) => Err(Error::Rank {
            rank,
            ranks,
            source: error.clone(),
        }),
        None => Ok(ended.into_iter().filter_map(Result::ok).collect()),
    }
}

/// Likelihood that another rank's failure has caused this error; 0: impossible.
fn consequence(error: &ClientError) -> u8 {
    match error {
        // This program has ended the lease, because another rank had failed.
        ClientError::LeaseEnded { .. } => 4,
        ClientError::Function { code, .. } => match *code {
            code::MEMBER_LOST | code::MEMBER_LEFT | code::OUTCAST | code::NOT_TOGETHER | code::UNAVAILABLE => 3,
            code::MISMATCH => 2,
            _ => 1,
        },
        error if may_lose_worker(error) => 0,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hotlease_wire::{Cause, EndReason, RunCertainty};

    fn failed(code: i32) -> RankResult {
        let output = b"why".to_vec();
        Err(ClientError::Function { code, output })
    }

    fn died() -> RankResult {
        Err(ClientError::WorkerDied {
            cause: Cause::OutOfMemory,
            function: None,
            output: String::new(),
            ran: RunCertainty::Unknown,
        })
    }

    fn cut_off() -> RankResult {
        Err(ClientError::LeaseEnded {
            reason: EndReason::Released,
            ran: RunCertainty::Unknown,
        })
    }

    fn named(ended: Vec<RankResult>) -> u32 {
        match merge_results(ended) {
            Err(Error::Rank { rank, ranks: 4, .. }) => rank,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn outputs_are_in_the_order_of_ranks() {
        let outputs = merge_results(vec![Ok(vec![0]), Ok(vec![]), Ok(vec![2])]);
        assert_eq!(outputs.expect("none has failed"), [vec![0], vec![], vec![2]]);
    }

    #[test]
    fn a_rank_that_failed_by_itself_is_named_before_ranks_that_followed() {
        let told = || failed(code::MEMBER_LOST);
        assert_eq!(named(vec![told(), cut_off(), failed(33), Ok(vec![])]), 2);
        assert_eq!(named(vec![told(), failed(code::NOT_TOGETHER), failed(33), died()]), 3);
        assert_eq!(named(vec![cut_off(), told(), failed(code::MISMATCH), told()]), 2);
        assert_eq!(named(vec![failed(code::UNAVAILABLE), cut_off(), told(), failed(1)]), 3);
        assert_eq!(named(vec![Ok(vec![]), told(), told(), cut_off()]), 1);
    }
}
