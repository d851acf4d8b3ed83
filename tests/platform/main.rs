//! Black-box tests of the built programs. Each is named by the promise that it proves.

mod billing;
mod buffers;
mod clients;
mod commands;
mod connections;
mod direct;
mod frames;
mod functions;
mod futures;
mod invocation;
mod invokers;
mod leases;
mod libraries;
mod moves;
mod nodes;
mod parts;
mod registrations;
mod removal;
mod resources;
mod rest;
mod rest_tls;
mod retries;
mod sharing;
mod sockets;
mod tokens;
mod workers;
