//! The engine in a world of its own: see [`world`]. A seed gives the same run every time.

mod acks;
mod actions;
mod answers;
mod app;
mod by_hand;
mod check;
mod consumers;
mod coverage;
mod crowd;
mod decisions;
mod depot;
mod evidence;
mod faults;
mod hands;
mod mutants;
mod network;
mod plan;
mod schedule;
mod simulation;
mod stages;
mod world;
