//! Batch jobs of the node: what they may use of it, and the site's policy for the rest.

pub(crate) mod control_groups;
pub(crate) mod follower;
pub(crate) mod hours;
pub(crate) mod job_watch;
pub(crate) mod policy;
pub(crate) mod policy_file;
pub(crate) mod policy_watch;
