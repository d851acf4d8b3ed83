//! L1: planning of collectives: what each rank does, by which algorithm, and what that takes and costs. Pure: no I/O, no
//! threads, no clocks.
//!
//! * A **[`Schedule`]** holds the steps of one rank in one collective: rounds of transfers that run at the same time,
//!   each followed by copies and reductions. It is pure data, so every collective is non-blocking by itself, and can
//!   be tested in memory for any number of ranks. [`Recipe::build`] makes it, by one of several [`Algorithm`]s for each
//!   [`Operation`]; [`Areas`] runs its local steps, with an [`Operator`] for a [`Datatype`].
//! * A **[`Table`]** chooses the algorithm for a call, and explains the choice.
//! * **[`cost`]** simulates thousands of ranks from the latency and bandwidth of their links; **[`model`]** adds the
//!   price, and chooses the link.
//!
//! `hotlease_comm` runs schedules between members, and re-exports everything here.
//!
//! Steps of rank 1 of 4 in an allreduce, where every rank gets the sum of the 1000 numbers of 8 bytes of all ranks:
//!
//! ```
//! use hotlease_collectives::{Call, Collective, LinkKind, Question, Step, Table};
//!
//! let call = Call::new(Collective::Allreduce { count: 1000 }, 1, 4);
//! let choice = Table::built_in().choose(&Question::new(&call, 8, LinkKind::Tcp));
//! let schedule = choice.recipe.build(&call)?;
//! for transfer in schedule.rounds.iter().flat_map(|round| &round.transfers) {
//!     match transfer {
//!         Step::Send { to, from } => println!("{from} to rank {to}"),
//!         Step::Receive { from, into } => println!("{into} from rank {from}"),
//!         other => unreachable!("{other:?} is for stores"),
//!     }
//! }
//! # Ok::<(), hotlease_collectives::Error>(())
//! ```

#![forbid(unsafe_code)]

mod algorithm;
mod areas;
mod choice;
mod collective;
pub mod cost;
mod datatype;
mod element;
mod error;
pub mod model;
mod operator;
mod schedule;

pub use algorithm::{Algorithm, Blocks, Recipe, SchedulePart};
pub use areas::Areas;
pub use choice::{Choice, Explanation, LinkKind, Measurement, Question, Rule, Table};
pub use collective::{Collective, CollectiveCall, Operation};
pub use datatype::Datatype;
pub use element::{Element, Plain};
pub use error::Error;
pub use operator::{Operands, Operator, Reduction, UserFunction};
pub use schedule::{Area, AreaSpan, Rank, Round, Schedule, Step};
