//! Arguments of an agent that ends by itself: at the end of its batch job, or when no lease needs it.

use clap::Args;
use hotlease_agent::Agent;
use hotlease_terminal::quantity;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Variable in which Slurm states a job's end, seconds since 1970.
const JOB_END: &str = "SLURM_JOB_END_TIME";

/// Arguments that decide when an agent ends.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct LifetimeArgs {
    /// Time when the node is taken away, such as the end of a batch job. No lease lasts beyond this time, however often
    /// it is renewed, no lease is granted shortly before it, and the agent has stopped by then. A time from now like
    /// 1h, a time like 2026-11-30T18:00:00Z, seconds since 1970 like @1796061600, or `job`: the end of this Slurm job
    /// by $SLURM_JOB_END_TIME
    #[arg(long, value_name = "TIME")]
    until: Option<EndTime>,
    /// Stop once there was no lease for this long [default: run until it is told to stop]
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_time)]
    idle_limit: Option<Duration>,
}

impl LifetimeArgs {
    /// The time when the node is taken away, if that is known.
    pub(super) fn until(&self) -> Option<SystemTime> {
        self.until.map(|until| until.0)
    }

    /// Gives the node back when it is time; returns when no lease holds any resource of the node. Never returns if
    /// there is no time limit.
    pub(super) async fn end(&self, agent: &Agent) {
        let unused = async {
            match self.idle_limit {
                Some(limit) => {
                    agent.unused(limit).await;
                    tracing::info!(?limit, "stopping: there was no lease for this long");
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = agent.out_of_time() => {}
            () = unused => {}
        }
    }
}

/// A future point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct EndTime(SystemTime);

impl EndTime {
    fn of_unix(seconds: &str) -> Option<Self> {
        let since_1970 = Duration::from_secs(seconds.parse().ok()?);
        UNIX_EPOCH.checked_add(since_1970).map(Self)
    }

    /// Reads a time; `job_end`: the end of this job as the batch system states it.
    fn read(text: &str, job_end: Option<&str>) -> Result<Self, String> {
        if text == "job" {
            let end = job_end.ok_or_else(|| format!("{JOB_END} is not set: is this a job of Slurm?"))?;
            return Self::of_unix(end).ok_or_else(|| format!("{JOB_END} is {end:?}, not seconds since 1970"));
        }
        if let Some(seconds) = text.strip_prefix('@') {
            return Self::of_unix(seconds).ok_or_else(|| "after @ stand seconds since 1970".into());
        }
        if let Ok(moment) = OffsetDateTime::parse(text, &Rfc3339) {
            return Ok(Self(moment.into()));
        }
        let end = quantity::parse_time(text).and_then(|left| {
            let end = SystemTime::now().checked_add(left);
            end.ok_or_else(|| "it is too far away".into())
        });
        end.map(Self)
            .map_err(|why| format!("{why}; write 1h, 2026-11-30T18:00:00Z, @1796061600, or job"))
    }
}

impl FromStr for EndTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text, std::env::var(JOB_END).ok().as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_in_four_ways() {
        let at = |seconds| Ok(EndTime(UNIX_EPOCH + Duration::from_secs(seconds)));
        assert_eq!(EndTime::read("@1796061600", None), at(1_796_061_600));
        assert_eq!(EndTime::read("2026-11-30T18:00:00Z", None), at(1_796_061_600));
        assert_eq!(EndTime::read("job", Some("1796061600")), at(1_796_061_600));
        let hour = EndTime::read("1h", None).expect("a time").0;
        let left = hour.duration_since(SystemTime::now()).expect("to come");
        assert!(
            left > Duration::from_secs(3500) && left <= Duration::from_secs(3600),
            "{left:?}"
        );
        for (bad, job) in [
            ("", None),
            ("3600", None),
            ("soon", None),
            ("@", None),
            ("job", None),
            ("job", Some("x")),
        ] {
            assert!(EndTime::read(bad, job).is_err(), "{bad:?}");
        }
    }
}
