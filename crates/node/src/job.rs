//! The job that begins or ends, as the batch system describes it in the environment of its prolog and epilog.

use hotlease_wire::batch::{BatchJob, JobSharing, NAME_BYTES_MAX};
use hotlease_wire::ids::JobId;
use hotlease_wire::limits::GPUS_PER_AGENT_MAX;
use std::collections::BTreeSet;
use std::env;

/// Returns the job that the environment describes. The agent frees the whole node for the job: which part the job may
/// use is known only after it has begun, from its control groups.
pub fn of_environment() -> Result<BatchJob, String> {
    of(|name| env::var(name).ok())
}

fn of(variable: impl Fn(&str) -> Option<String>) -> Result<BatchJob, String> {
    let id =
        variable("SLURM_JOB_ID").ok_or("there is no SLURM_JOB_ID in the environment: run it in a prolog or epilog")?;
    let id = id
        .parse()
        .map_err(|_| format!("SLURM_JOB_ID is {id:?} and no number"))?;
    let name = |name| {
        let text = variable(name).unwrap_or_default();
        text.chars().take(NAME_BYTES_MAX / 4).collect::<String>()
    };
    // Slurm 22.05 does not set this variable; later versions do.
    let sharing = variable("SLURM_JOB_OVERSUBSCRIBE").unwrap_or_default();
    let nodes = variable("SLURM_JOB_NUM_NODES").and_then(|nodes| nodes.parse().ok());
    Ok(BatchJob {
        user: name("SLURM_JOB_USER"),
        partition: name("SLURM_JOB_PARTITION"),
        account: name("SLURM_JOB_ACCOUNT"),
        // Constraints that are too long are left out: if they were cut, they could have another meaning.
        constraint: variable("SLURM_JOB_CONSTRAINTS")
            .filter(|text| text.len() <= NAME_BYTES_MAX)
            .unwrap_or_default(),
        comment: first_words(&variable("SLURM_JOB_COMMENT").unwrap_or_default()).into(),
        nodes: nodes.unwrap_or(0),
        sharing: JobSharing::of_slurm(&sharing),
        gpus: variable("SLURM_JOB_GPUS").and_then(|text| gpus_in(&text)),
        // Versions of Slurm that name control groups by this id were not tested.
        group: name("SLURM_JOB_SLUID"),
        ..BatchJob::unknown(JobId(id))
    })
}

/// Reads the GPUs of a list such as `0,2-3`.
fn gpus_in(text: &str) -> Option<BTreeSet<u32>> {
    let mut gpus = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= GPUS_PER_AGENT_MAX {
            return None;
        }
        gpus.extend(first..=last);
    }
    Some(gpus)
}

/// Returns the text. If it is too long, returns its beginning, up to the last whole word that fits.
fn first_words(text: &str) -> &str {
    if text.len() <= NAME_BYTES_MAX {
        return text;
    }
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let cut = ends.take_while(|end| *end <= NAME_BYTES_MAX).last().unwrap_or(0);
    text[..cut]
        .rsplit_once(char::is_whitespace)
        .map_or("", |(words, _)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_those_of_a_list() {
        assert_eq!(gpus_in("0,2-3"), Some([0, 2, 3].into()));
        for bad in ["", "x", "0,", "-1", "1024", "0-9999999999", "0-1-2"] {
            assert_eq!(gpus_in(bad), None, "{bad:?}");
        }
    }

    fn of_variables(variables: &[(&str, &str)]) -> Result<BatchJob, String> {
        of(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_describes_the_job() {
        let job = of_variables(&[
            ("SLURM_JOB_ID", "17"),
            ("SLURM_JOB_USER", "ada"),
            ("SLURM_JOB_PARTITION", "normal"),
            ("SLURM_JOB_COMMENT", "hotlease"),
            ("SLURM_JOB_NUM_NODES", "3"),
            ("SLURM_JOB_OVERSUBSCRIBE", "YES"),
        ]);
        let job = job.expect("a job");
        assert_eq!(
            (job.comment.as_str(), job.nodes, job.sharing),
            ("hotlease", 3, JobSharing::Requested)
        );
        assert_eq!(
            (job.id, job.user.as_str(), job.account.as_str()),
            (JobId(17), "ada", "")
        );
        for bad in [&[][..], &[("SLURM_JOB_ID", "")], &[("SLURM_JOB_ID", "-1")]] {
            assert!(of_variables(bad).is_err(), "{bad:?}");
        }
        let long = "é".repeat(NAME_BYTES_MAX);
        let comment = format!("hotlease {long}");
        let job = of_variables(&[
            ("SLURM_JOB_ID", "1"),
            ("SLURM_JOB_USER", &long),
            ("SLURM_JOB_CONSTRAINTS", &long),
            ("SLURM_JOB_COMMENT", &comment),
        ]);
        let job = job.expect("a job");
        assert_eq!((job.constraint.as_str(), job.comment.as_str()), ("", "hotlease"));
        assert!(hotlease_wire::batch::NodeRequest::Yield(job.into()).check().is_ok());
    }
}
