//! Level 2 of hotlease: message passing between functions, or between any processes: communicators and the protocol
//! between their members.
//!
//! ```text
//!   Communicator ──▶ Protocol: matching, credit, large messages, schedules ──▶ Link: memory, TCP, libfabric, a store
//!     any thread        pure: calls and frames in, actions out                 frames and bodies
//!        └─ waits, and drives the engine meanwhile
//! ```
//!
//! * A **[`Communicator`]** is joined by name: all members meet at a [`rendezvous`], which tells them the addresses of
//!   the others. They then connect directly, through NATs if need be, or as the last resort through the rendezvous
//!   ([`Route`]). A [`Secret`] that all members have proves who they are.
//! * Messages have a tag, and are received by [`Pattern`]. Small messages are sent at once; large messages go straight
//!   into the memory of the receiver that asks for them. The memory for messages that have arrived before a receive is
//!   bounded.
//! * An operation of all members is a collective. There are blocking calls on slices of [`Element`]s
//!   ([`Communicator::allreduce`] and others), non-blocking calls ([`Communicator::iallreduce`] and others), and one
//!   call on bytes for all collectives ([`Communicator::collective`]).
//! * [`Communicator::split`] and [`Communicator::dup`] make communicators of some members on the same connections.
//!   After a failure, [`Communicator::shrink`] makes a communicator of the remaining members.
//!   [`Communicator::grow`] makes a communicator with newcomers.
//! * What each rank does in a collective is a [`Schedule`], which [`hotlease_collectives`] plans and the engine runs.
//!   All names of that crate are also exported here: [`Algorithm`], [`Table`], [`cost`], [`model`] and others.
//! * If a member fails or stops responding, every operation of other members that needs this member ends in a bounded
//!   time, with the cause.
//!
//! ```
//! use hotlease_comm::{Communicator, Options, Pattern, Secret, rendezvous};
//!
//! let secret = Secret::new(b"of at least sixteen bytes")?;
//! let server = rendezvous::Server::start("127.0.0.1:0", vec![secret.clone()], Default::default())?;
//! let options = Options::new("greetings", 2, server.address().to_string(), secret);
//! // Members are processes; here they are threads.
//! std::thread::scope(|scope| {
//!     let member = || -> Result<(), hotlease_comm::Error> {
//!         let all = Communicator::join(&options)?;
//!         let other = 1 - all.rank();
//!         all.send(b"hello", other, 7)?;
//!         let mut text = [0; 5];
//!         let status = all.receive(&mut text, Pattern::of(other, 7))?;
//!         assert_eq!((&text, status.bytes), (b"hello", 5));
//!         all.finish()
//!     };
//!     let members = [scope.spawn(member), scope.spawn(member)];
//!     members.map(|member| member.join().expect("no panic")).into_iter().collect::<Result<(), _>>()
//! })?;
//! # Ok::<(), hotlease_comm::Error>(())
//! ```
//!
//! Calls of one member among several:
//!
//! ```no_run
//! use hotlease_comm::{Communicator, Error, InPlace, Operator};
//!
//! fn train(all: Communicator) -> Result<(), Error> {
//!     let mut gradient = vec![0.5_f64; 1000];
//!     // Every member gets the sum of all gradients.
//!     all.allreduce(InPlace, &mut gradient, &Operator::Sum)?;
//!     // Computes the sum again, while this member does something else.
//!     let sum = all.iallreduce(gradient, &Operator::Sum)?;
//!     let gradient = sum.wait()?;
//!     // Makes a communicator of the even ranks, and one of the odd ranks.
//!     let half = all.split(Some(all.rank() % 2), 0)?.expect("everybody gives a color");
//!     let mut most = [0.0];
//!     half.reduce(&[gradient[0]], &mut most, &Operator::Max, 0)?;
//!     // A member is killed: the others go on without it.
//!     match all.barrier() {
//!         Err(Error::MemberLost { .. }) => all.shrink()?.barrier(),
//!         ended => ended,
//!     }
//! }
//! ```

#![forbid(unsafe_code)]

mod arena;
mod card;
mod communicator;
mod engine;
mod error;
pub mod link;
mod matching;
mod memory;
mod options;
mod protocol;
pub mod rendezvous;
mod request;
mod route;
mod secret;

pub use communicator::{Communicator, Contribution, InPlace, MemberCollective};
pub use error::{Activity, Error, MemberCall};
pub use hotlease_collectives::{
    Algorithm, Area, AreaSpan, Areas, Blocks, Collective, CollectiveCall, Datatype, Element, Explanation, LinkKind,
    Measurement, Operands, Operation, Operator, Plain, Question, Rank, Recipe, Reduction, Round, Rule, Schedule,
    SchedulePart, Step, Table, UserFunction, cost, model,
};
pub use hotlease_fabric::loan::{LentBytes, LentBytesMut, lend, lend_mut};
pub use hotlease_wire::comm::Loss;
pub use hotlease_wire::comm::rendezvous::JoinRejection;
pub use matching::Pattern;
pub use options::{AutoLink, LinkChoice, Options, StoreAddress};
pub use protocol::MessageStatus;
pub use request::{CollectiveRequest, ReceiveRequest, ReceivedMessage, Request, Watch, wait_all, wait_any};
pub use route::Route;
pub use secret::{SECRET_BYTES_MIN, Secret};
