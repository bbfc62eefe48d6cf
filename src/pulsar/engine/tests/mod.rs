//! The engine in a world of its own: see [`world`]. A seed gives the same run every time.

mod actions;
mod app;
mod broker;
mod by_hand;
mod caller;
mod check;
mod cluster;
mod coverage;
mod fault;
mod links;
mod memory;
mod mutants;
mod network;
mod ops;
mod plan;
mod pool;
mod readers;
mod scene;
mod scenes_attach;
mod scenes_receive;
mod scenes_send;
mod schedule;
mod shell;
mod simulation;
mod stages;
mod world;
