//! The platform as its operators and users see it: nodes, bills, the command line and REST.

mod alloc;
mod batch;
mod billing;
mod commands;
mod environments;
mod jobs;
mod lifetimes;
mod nodes;
mod plans;
mod removal;
mod rendezvous;
mod resources;
mod rest;
mod rest_tls;
