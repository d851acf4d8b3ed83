//! Batch jobs of the node: the resources that they may use, and the site's policy for the other resources.

pub(crate) mod control_groups;
pub(crate) mod follower;
pub(crate) mod hours;
pub(crate) mod job_watch;
pub(crate) mod policy;
pub(crate) mod policy_file;
pub(crate) mod policy_watch;
