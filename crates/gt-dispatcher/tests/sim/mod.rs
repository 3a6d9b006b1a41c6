//! A world in which everything is decided by one seed: clients, workers, links with delays, deaths.
//! Messages keep their order on a link and none between links.

pub mod client;
pub mod gang;
pub mod rng;
pub mod worker;
pub mod world;
