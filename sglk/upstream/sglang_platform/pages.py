"""SGLang's allocator of KV pages without Triton, which its own takes slots by."""

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator


class SglkPages(PagedTokenToKVPoolAllocator):  # type: ignore[misc]
    """Takes slots for new tokens: first the rest of a request's last page, then whole pages. T tokens, B requests."""

    free_pages: torch.Tensor
    """Numbers of pages that nobody holds."""

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        """Return slots [T] for the tokens from `prefix_lens` to `seq_lens` of each request; None where pages lack."""
        return self._take(prefix_lens, seq_lens, last_loc)

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        """Return a slot [B] for the last token of each request; None where pages lack."""
        return self._take(seq_lens - 1, seq_lens, last_loc)

    def _take(self, prefix_B: torch.Tensor, seq_B: torch.Tensor, last_B: torch.Tensor) -> torch.Tensor | None:
        needed = pages_of(seq_B, self.page_size) - pages_of(prefix_B, self.page_size)
        count = int(needed.sum())
        if self.need_sort and count > len(self.free_pages):
            self.merge_and_sort_free()
        if count > len(self.free_pages):
            return None
        slots_T = new_slots(
            prefix_B.long(), seq_B.long(), last_B.long(), self.free_pages[:count].long(), self.page_size
        )
        self.free_pages = self.free_pages[count:]
        return slots_T


def pages_of(tokens_B: torch.Tensor, page: int) -> torch.Tensor:
    """Return how many pages of `page` tokens hold `tokens_B`."""
    return (tokens_B + page - 1) // page


def new_slots(
    prefix_B: torch.Tensor, seq_B: torch.Tensor, last_B: torch.Tensor, pages_P: torch.Tensor, page: int
) -> torch.Tensor:
    """Return the slots [T] of tokens `prefix_B` to `seq_B`, by request; `last_B` is the slot of the token before."""
    counts_B = seq_B - prefix_B
    room_B = pages_of(prefix_B, page) * page
    taken_B = pages_of(seq_B, page) - pages_of(prefix_B, page)

    def each(values_B: torch.Tensor) -> torch.Tensor:
        return values_B.repeat_interleave(counts_B)

    offset_T = torch.arange(int(counts_B.sum())) - each(counts_B.cumsum(0) - counts_B)
    position_T = each(prefix_B) + offset_T
    behind_T = position_T - each(room_B)
    inside_T = behind_T < 0
    slots_T = each(last_B) + 1 + offset_T
    page_T = (each(taken_B.cumsum(0) - taken_B) + behind_T // page)[~inside_T]
    slots_T[~inside_T] = pages_P[page_T] * page + position_T[~inside_T] % page
    return slots_T
