//! One suite for all transports: the promises of a channel hold over `shm` and over every libfabric provider of this
//! machine, with each libfabric that is found.
//!
//! The suite uses the system's libfabric, and the library that `HOTLEASE_LIBFABRIC_TEST` names. A provider that a
//! library does not have is skipped, with a line that reports it. Tests run one at a time: most of them keep two
//! threads polling.

mod channels;
mod forged;
mod loss;
mod messengers;
mod ports;
mod served;
mod spans;
mod transport;

use transport::{Fabric, LibfabricChoice, Shm};

/// The tests of channels, over one transport.
macro_rules! channel_tests {
    ($on:expr) => {
        channel_tests! { $on,
            every_size_and_alignment_comes_back_whole
            requests_can_be_read_back_until_their_entry_is_used_again
            pipelined_invocations_come_back_in_order_over_many_laps
            express_entry_and_ring_mix
            both_ends_may_sleep
            sleeping_ends_and_polling_ends_mix
        }
    };
    ($on:expr, $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $on(|pair| crate::channels::$name(pair));
            }
        )*
    };
}

/// The tests of ports, over one provider.
macro_rules! port_tests {
    ($on:expr, $($module:ident :: $name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $on(|fabric| crate::$module::$name(fabric));
            }
        )*
    };
}

mod shm {
    channel_tests!(|test: fn(&crate::Shm)| test(&crate::Shm));
}

macro_rules! fabric {
    ($($module:ident: $which:expr, $provider:literal;)*) => {
        $(
            mod $module {
                fn on(test: fn(&crate::Fabric)) {
                    crate::Fabric::with($which, $provider, test);
                }
                channel_tests!(on);
                port_tests! { on,
                    ports::probe_measures_the_link_and_needs_the_key
                    ports::addresses_of_another_format_are_refused
                    ports::many_channels_share_a_port
                    ports::many_clients_share_a_port
                    ports::two_threads_may_sleep_on_one_port
                    spans::spans_of_every_size_are_read_and_written
                    spans::keys_that_are_guessed_or_stale_are_errors
                    spans::spans_outside_of_the_memory_are_refused
                    spans::written_span_is_in_place_before_the_frame_that_follows
                    forged::forged_frames_are_counted_and_change_nothing
                    loss::peer_that_closes_is_noticed
                    loss::peer_that_vanishes_with_frames_in_flight_does_not_hang_the_other
                    loss::peer_that_vanishes_during_a_transfer_does_not_hang_the_other
                    loss::peer_that_is_given_up_ends_a_transfer_at_once
                    loss::silent_peer_does_not_hang_the_other
                    loss::broken_connections_leave_nothing_behind
                    messengers::messages_come_whole_and_in_order_from_many
                    messengers::messages_of_strangers_change_nothing
                    messengers::addresses_that_are_none_are_refused_by_messengers
                    messengers::messages_wake_who_sleeps
                    messengers::a_peer_that_is_gone_does_not_block_the_others
                }
            }
        )*
    };
}

mod fastest {
    #[test]
    fn gibibyte_is_read_whole() {
        crate::Fabric::with(
            crate::LibfabricChoice::System,
            "net",
            crate::spans::gibibyte_is_read_whole,
        );
    }
}

fabric! {
    net: crate::LibfabricChoice::System, "net";
    tcp: crate::LibfabricChoice::System, "tcp";
    tcp_rxm: crate::LibfabricChoice::System, "tcp;ofi_rxm";
    udp_rxd: crate::LibfabricChoice::System, "udp;ofi_rxd";
    ofi_shm: crate::LibfabricChoice::System, "shm";
    verbs_rxm: crate::LibfabricChoice::System, "verbs;ofi_rxm";
    second_tcp: crate::LibfabricChoice::Second, "tcp";
    second_tcp_rxm: crate::LibfabricChoice::Second, "tcp;ofi_rxm";
    second_udp_rxd: crate::LibfabricChoice::Second, "udp;ofi_rxd";
    second_ofi_shm: crate::LibfabricChoice::Second, "shm";
}
