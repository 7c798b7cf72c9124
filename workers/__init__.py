"""Stand-ins for real back ends: a pool with c servers and one FCFS queue. Knows nothing of the dispatcher."""
