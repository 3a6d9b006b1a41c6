//! Laws that name no op and run over the whole list of samples: a new op is tested by being in the list.

mod composites;
mod conventions;
mod gradients;
mod layouts;
mod programs;
mod tape;
mod types;
