//! L2: message passing between functions. So far its pure half: what each rank does in a collective, and how that is chosen.
//! Nothing here sends anything.
//!
//! ```text
//!   Call (operation, counts, root, rank) ──▶ Table::choose ──▶ Recipe ──build──▶ Schedule ──▶ an engine runs it, over a link
//!                                             by link, ranks,  an algorithm      of one rank   a test runs it in memory
//!                                             bytes                                            a model costs it
//! ```
//!
//! * A **[`Schedule`]** is what one rank does: rounds of transfers that go on at the same time, and then copies and reductions.
//!   It is pure data, so every collective is non-blocking by itself, and can be tried for any number of ranks in memory.
//! * **[`Recipe::build`]** makes it, by one of several [`Algorithm`]s for each [`Operation`].
//! * **[`Areas`]** runs the local half of it on the caller's bytes, with an [`Operator`] for a [`Datatype`].
//! * **[`Table`]** says which algorithm is used when, and why.
//! * **[`cost`]** simulates the schedules of thousands of ranks from the latency and bandwidth of their links.
//!
//! ```
//! use hotlease_comm::{Areas, Call, Collective, LinkKind, Question, Step, Table};
//!
//! // Everyone gets the sum of 4 ranks' 1000 numbers of 8 bytes; this is rank 1.
//! let call = Call::new(Collective::Allreduce { count: 1000 }, 1, 4);
//! let choice = Table::built_in().choose(&Question::new(&call, 8, LinkKind::Tcp));
//! let schedule = choice.recipe.build(&call)?;
//! for round in &schedule.rounds {
//!     for transfer in &round.transfers {
//!         match transfer {
//!             Step::Send { to, from } => println!("{from} to rank {to}"),
//!             Step::Receive { from, into } => println!("{into} from rank {from}"),
//!             other => unreachable!("{other:?} is for stores"),
//!         }
//!     }
//! }
//! # Ok::<(), hotlease_comm::Error>(())
//! ```

#![forbid(unsafe_code)]

mod algorithm;
mod areas;
mod choice;
mod collective;
pub mod cost;
mod datatype;
mod error;
mod operator;
mod schedule;

pub use algorithm::{Algorithm, Blocks, Part, Recipe};
pub use areas::Areas;
pub use choice::{Choice, Explanation, LinkKind, Question, Rule, Table};
pub use collective::{Call, Collective, Operation};
pub use datatype::Datatype;
pub use error::Error;
pub use operator::{Operands, Operator, Reduction, UserFunction};
pub use schedule::{Area, Rank, Round, Schedule, Span, Step};
