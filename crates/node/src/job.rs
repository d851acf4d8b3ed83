//! The job that begins or ends, as the batch system describes it in the environment of its prolog and epilog.

use hotlease_wire::batch::{BatchJob, JobShare, NAME_BYTES_MAX};
use hotlease_wire::ids::JobId;
use std::env;

/// The job of this environment. The agent gets the whole node ready for it: which part it may use stands in its control
/// groups only after it has begun.
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
    Ok(BatchJob {
        id: JobId(id),
        user: name("SLURM_JOB_USER"),
        partition: name("SLURM_JOB_PARTITION"),
        account: name("SLURM_JOB_ACCOUNT"),
        share: JobShare::Node,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ]);
        let job = job.expect("a job");
        assert_eq!(
            (job.id, job.user.as_str(), job.account.as_str()),
            (JobId(17), "ada", "")
        );
        for bad in [&[][..], &[("SLURM_JOB_ID", "")], &[("SLURM_JOB_ID", "-1")]] {
            assert!(of_variables(bad).is_err(), "{bad:?}");
        }
        let long = "é".repeat(NAME_BYTES_MAX);
        let job = of_variables(&[("SLURM_JOB_ID", "1"), ("SLURM_JOB_USER", &long)]).expect("a job");
        assert!(hotlease_wire::batch::NodeRequest::Yield(job).check().is_ok());
    }
}
