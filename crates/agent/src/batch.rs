//! Batch jobs of the node: the site's policy for what they leave.

pub(crate) mod hours;
pub(crate) mod job_watch;
pub(crate) mod policy;
pub(crate) mod policy_file;
pub(crate) mod policy_watch;
