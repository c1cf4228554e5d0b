"""uvicorn without its ticks: its own loop wakes ten times a second to see whether it should go, and to set
the date header, which would be most of what an idle broker does."""

from __future__ import annotations

import asyncio

import uvicorn


class PatientServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told_to_stop = asyncio.Event()

    def tell_to_stop(self) -> None:
        self.should_exit = True
        self._told_to_stop.set()

    async def main_loop(self) -> None:
        self.server_state.default_headers = self.config.encoded_headers
        await self._told_to_stop.wait()
