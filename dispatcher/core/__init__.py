"""The pure heart: types, fleet, router, choosing, regret, service times, random streams.

Nothing here may know of asyncio, time, sockets, logging or global dice: time comes in as an argument, dice at
construction. That is what lets the live service and the simulator run the same objects.
"""
